#include "interpose/allocator_hooks.h"

#include <cstddef>
#include <utility>

#include "interpose/block_hooks.h"

namespace hiwater::interpose {

namespace {

struct Entry {
    const char* name;
    Does does;
    const char* sister = nullptr;  // of what throws: the entry that gives null instead
};

constexpr Entry kEntries[] = {
    {"malloc", Does::allocate_first},
    {"calloc", Does::allocate_product},
    {"realloc", Does::resize},
    {"reallocarray", Does::resize_product},
    {"reallocf", Does::resize_or_free},
    {"free", Does::release},
    {"cfree", Does::release},
    {"vfree", Does::release},
    {"free_sized", Does::release},
    {"free_aligned_sized", Does::release},
    {"posix_memalign", Does::fill_pointer},
    {"aligned_alloc", Does::allocate_second},
    {"memalign", Does::allocate_second},
    {"valloc", Does::allocate_first},
    {"pvalloc", Does::allocate_first},
    {"__libc_malloc", Does::allocate_first},
    {"__libc_calloc", Does::allocate_product},
    {"__libc_realloc", Does::resize},
    {"__libc_free", Does::release},
    {"__libc_cfree", Does::release},
    {"__libc_memalign", Does::allocate_second},
    {"__libc_valloc", Does::allocate_first},
    {"__libc_pvalloc", Does::allocate_first},
    {"__posix_memalign", Does::fill_pointer},
    // C++: operator new and new[], each also with nothrow, an alignment, or both; delete also with a size.
    {"_Znwm", Does::allocate_or_throw, "_ZnwmRKSt9nothrow_t"},
    {"_Znam", Does::allocate_or_throw, "_ZnamRKSt9nothrow_t"},
    {"_ZnwmRKSt9nothrow_t", Does::allocate_first},
    {"_ZnamRKSt9nothrow_t", Does::allocate_first},
    {"_ZnwmSt11align_val_t", Does::allocate_aligned_or_throw, "_ZnwmSt11align_val_tRKSt9nothrow_t"},
    {"_ZnamSt11align_val_t", Does::allocate_aligned_or_throw, "_ZnamSt11align_val_tRKSt9nothrow_t"},
    {"_ZnwmSt11align_val_tRKSt9nothrow_t", Does::allocate_first},
    {"_ZnamSt11align_val_tRKSt9nothrow_t", Does::allocate_first},
    {"_ZdlPv", Does::release},
    {"_ZdaPv", Does::release},
    {"_ZdlPvm", Does::release},
    {"_ZdaPvm", Does::release},
    {"_ZdlPvRKSt9nothrow_t", Does::release},
    {"_ZdaPvRKSt9nothrow_t", Does::release},
    {"_ZdlPvSt11align_val_t", Does::release},
    {"_ZdaPvSt11align_val_t", Does::release},
    {"_ZdlPvmSt11align_val_t", Does::release},
    {"_ZdaPvmSt11align_val_t", Does::release},
    {"_ZdlPvSt11align_val_tRKSt9nothrow_t", Does::release},
    {"_ZdaPvSt11align_val_tRKSt9nothrow_t", Does::release},
    // jemalloc, also as built with its usual prefix
    {"mallocx", Does::allocate_first},
    {"rallocx", Does::resize},
    {"xallocx", Does::grow_in_place},
    {"dallocx", Does::release},
    {"sdallocx", Does::release},
    {"je_malloc", Does::allocate_first},
    {"je_calloc", Does::allocate_product},
    {"je_realloc", Does::resize},
    {"je_free", Does::release},
    {"je_free_sized", Does::release},
    {"je_free_aligned_sized", Does::release},
    {"je_posix_memalign", Does::fill_pointer},
    {"je_aligned_alloc", Does::allocate_second},
    {"je_memalign", Does::allocate_second},
    {"je_valloc", Does::allocate_first},
    {"je_pvalloc", Does::allocate_first},
    {"je_mallocx", Does::allocate_first},
    {"je_rallocx", Does::resize},
    {"je_xallocx", Does::grow_in_place},
    {"je_dallocx", Does::release},
    {"je_sdallocx", Does::release},
    // mimalloc, without its heaps, which may be destroyed with all that is in them, and what throws and has no sister
    {"mi_malloc", Does::allocate_first},
    {"mi_malloc_small", Does::allocate_first},
    {"mi_zalloc", Does::allocate_first},
    {"mi_zalloc_small", Does::allocate_first},
    {"mi_calloc", Does::allocate_product},
    {"mi_mallocn", Does::allocate_product},
    {"mi_realloc", Does::resize},
    {"mi_rezalloc", Does::resize},
    {"mi_reallocf", Does::resize_or_free},
    {"mi_reallocn", Does::resize_product},
    {"mi_reallocarray", Does::resize_product},
    {"mi_recalloc", Does::resize_product},
    {"mi_malloc_aligned", Does::allocate_first},
    {"mi_malloc_aligned_at", Does::allocate_first},
    {"mi_zalloc_aligned", Does::allocate_first},
    {"mi_zalloc_aligned_at", Does::allocate_first},
    {"mi_calloc_aligned", Does::allocate_product},
    {"mi_calloc_aligned_at", Does::allocate_product},
    {"mi_realloc_aligned", Does::resize},
    {"mi_realloc_aligned_at", Does::resize},
    {"mi_rezalloc_aligned", Does::resize},
    {"mi_rezalloc_aligned_at", Does::resize},
    {"mi_recalloc_aligned", Does::resize_product},
    {"mi_recalloc_aligned_at", Does::resize_product},
    {"mi_posix_memalign", Does::fill_pointer},
    {"mi_memalign", Does::allocate_second},
    {"mi_aligned_alloc", Does::allocate_second},
    {"mi_valloc", Does::allocate_first},
    {"mi_pvalloc", Does::allocate_first},
    {"mi_new", Does::allocate_or_throw, "mi_new_nothrow"},
    {"mi_new_nothrow", Does::allocate_first},
    {"mi_new_aligned", Does::allocate_aligned_or_throw, "mi_new_aligned_nothrow"},
    {"mi_new_aligned_nothrow", Does::allocate_first},
    {"mi_free", Does::release},
    {"mi_cfree", Does::release},
    {"mi_free_size", Does::release},
    {"mi_free_aligned", Does::release},
    {"mi_free_size_aligned", Does::release},
    // tcmalloc
    {"tc_malloc", Does::allocate_first},
    {"tc_malloc_skip_new_handler", Does::allocate_first},
    {"tc_calloc", Does::allocate_product},
    {"tc_realloc", Does::resize},
    {"tc_free", Does::release},
    {"tc_cfree", Does::release},
    {"tc_free_sized", Does::release},
    {"tc_posix_memalign", Does::fill_pointer},
    {"tc_memalign", Does::allocate_second},
    {"tc_valloc", Does::allocate_first},
    {"tc_pvalloc", Does::allocate_first},
    {"tc_new", Does::allocate_or_throw, "tc_new_nothrow"},
    {"tc_new_nothrow", Does::allocate_first},
    {"tc_new_aligned", Does::allocate_aligned_or_throw, "tc_new_aligned_nothrow"},
    {"tc_new_aligned_nothrow", Does::allocate_first},
    {"tc_newarray", Does::allocate_or_throw, "tc_newarray_nothrow"},
    {"tc_newarray_nothrow", Does::allocate_first},
    {"tc_newarray_aligned", Does::allocate_aligned_or_throw, "tc_newarray_aligned_nothrow"},
    {"tc_newarray_aligned_nothrow", Does::allocate_first},
    {"tc_delete", Does::release},
    {"tc_delete_nothrow", Does::release},
    {"tc_delete_sized", Does::release},
    {"tc_delete_aligned", Does::release},
    {"tc_delete_aligned_nothrow", Does::release},
    {"tc_delete_sized_aligned", Does::release},
    {"tc_deletearray", Does::release},
    {"tc_deletearray_nothrow", Does::release},
    {"tc_deletearray_sized", Does::release},
    {"tc_deletearray_aligned", Does::release},
    {"tc_deletearray_aligned_nothrow", Does::release},
    {"tc_deletearray_sized_aligned", Does::release},
};
constexpr std::size_t kCount = sizeof kEntries / sizeof kEntries[0];

// A function that takes fewer arguments than four finds those it takes where it expects them.
Function g_real[kMostAllocators][kCount], g_sister[kMostAllocators][kCount];

template <int kNumber, std::size_t kEntry>
Word hook(Word a, Word b, Word c, Word d) {
    return call_recorded<kEntries[kEntry].does>(g_real[kNumber][kEntry], g_sister[kNumber][kEntry], a, b, c, d);
}

template <int kNumber, std::size_t... kEntry>
constexpr void fill(Function* hooks, std::index_sequence<kEntry...>) {
    ((hooks[kEntry] = &hook<kNumber, kEntry>), ...);
}

struct Table {
    Function hooks[kMostAllocators][kCount];
    constexpr Table() : hooks() {
        fill<0>(hooks[0], std::make_index_sequence<kCount>());
        fill<1>(hooks[1], std::make_index_sequence<kCount>());
        fill<2>(hooks[2], std::make_index_sequence<kCount>());
    }
};
static_assert(kMostAllocators == 3);
constinit const Table g_table;

}  // namespace

void add_allocator_hooks(int number, const Module& module, std::vector<Hook>* hooks) {
    for (std::size_t i = 0; i < kCount; ++i) {
        g_real[number][i] = reinterpret_cast<Function>(function_in(module, kEntries[i].name));
        if (g_real[number][i] == nullptr) continue;
        if (kEntries[i].sister != nullptr)
            g_sister[number][i] = reinterpret_cast<Function>(function_in(module, kEntries[i].sister));
        hooks->push_back({kEntries[i].name, reinterpret_cast<void*>(g_table.hooks[number][i]),
                          reinterpret_cast<void**>(&g_real[number][i]), Hook::Of::allocator, false});
    }
}

}  // namespace hiwater::interpose
