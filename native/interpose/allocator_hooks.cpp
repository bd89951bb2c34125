#include "interpose/allocator_hooks.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "interpose/block_hooks.h"

namespace hiwater::interpose {

namespace {

// Entries that do the same.
struct Group {
    Does does;
    const char* names[15];
};

constexpr Group kGroups[] = {
    // the C library
    {Does::allocate_first, {"malloc", "valloc", "pvalloc", "__libc_malloc", "__libc_valloc", "__libc_pvalloc"}},
    {Does::allocate_second, {"aligned_alloc", "memalign", "__libc_memalign"}},
    {Does::allocate_product, {"calloc", "__libc_calloc"}},
    {Does::fill_pointer, {"posix_memalign", "__posix_memalign"}},
    {Does::resize, {"realloc", "__libc_realloc"}},
    {Does::resize_product, {"reallocarray"}},
    {Does::resize_or_free, {"reallocf"}},
    {Does::release, {"free", "cfree", "vfree", "free_sized", "free_aligned_sized", "__libc_free", "__libc_cfree"}},
    // C++: operator new and new[], each also with nothrow, an alignment, or both; delete also with a size.
    {Does::allocate_first,
     {"_ZnwmRKSt9nothrow_t", "_ZnamRKSt9nothrow_t", "_ZnwmSt11align_val_tRKSt9nothrow_t",
      "_ZnamSt11align_val_tRKSt9nothrow_t"}},
    {Does::release,
     {"_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm", "_ZdlPvRKSt9nothrow_t", "_ZdaPvRKSt9nothrow_t", "_ZdlPvSt11align_val_t",
      "_ZdaPvSt11align_val_t", "_ZdlPvmSt11align_val_t", "_ZdaPvmSt11align_val_t",
      "_ZdlPvSt11align_val_tRKSt9nothrow_t", "_ZdaPvSt11align_val_tRKSt9nothrow_t"}},
    {Does::allocate_or_throw, {"_Znwm", "_Znam"}},
    {Does::allocate_aligned_or_throw, {"_ZnwmSt11align_val_t", "_ZnamSt11align_val_t"}},
    // jemalloc, also as built with its usual prefix
    {Does::allocate_first, {"mallocx", "je_malloc", "je_valloc", "je_pvalloc", "je_mallocx"}},
    {Does::allocate_second, {"je_aligned_alloc", "je_memalign"}},
    {Does::allocate_product, {"je_calloc"}},
    {Does::fill_pointer, {"je_posix_memalign"}},
    {Does::resize, {"rallocx", "je_realloc", "je_rallocx"}},
    {Does::grow_in_place, {"xallocx", "je_xallocx"}},
    {Does::release,
     {"dallocx", "sdallocx", "je_free", "je_free_sized", "je_free_aligned_sized", "je_dallocx", "je_sdallocx"}},
    // mimalloc, without its heaps, which may be destroyed with all that is in them, and what throws and has no sister
    {Does::allocate_first,
     {"mi_malloc", "mi_malloc_small", "mi_zalloc", "mi_zalloc_small", "mi_malloc_aligned", "mi_malloc_aligned_at",
      "mi_zalloc_aligned", "mi_zalloc_aligned_at", "mi_valloc", "mi_pvalloc", "mi_new_nothrow",
      "mi_new_aligned_nothrow"}},
    {Does::allocate_second, {"mi_memalign", "mi_aligned_alloc"}},
    {Does::allocate_product, {"mi_calloc", "mi_mallocn", "mi_calloc_aligned", "mi_calloc_aligned_at"}},
    {Does::fill_pointer, {"mi_posix_memalign"}},
    {Does::resize,
     {"mi_realloc", "mi_rezalloc", "mi_realloc_aligned", "mi_realloc_aligned_at", "mi_rezalloc_aligned",
      "mi_rezalloc_aligned_at"}},
    {Does::resize_product,
     {"mi_reallocn", "mi_reallocarray", "mi_recalloc", "mi_recalloc_aligned", "mi_recalloc_aligned_at"}},
    {Does::resize_or_free, {"mi_reallocf"}},
    {Does::release, {"mi_free", "mi_cfree", "mi_free_size", "mi_free_aligned", "mi_free_size_aligned"}},
    {Does::allocate_or_throw, {"mi_new"}},
    {Does::allocate_aligned_or_throw, {"mi_new_aligned"}},
    // tcmalloc
    {Does::allocate_first,
     {"tc_malloc", "tc_malloc_skip_new_handler", "tc_valloc", "tc_pvalloc", "tc_new_nothrow", "tc_new_aligned_nothrow",
      "tc_newarray_nothrow", "tc_newarray_aligned_nothrow"}},
    {Does::allocate_second, {"tc_memalign"}},
    {Does::allocate_product, {"tc_calloc"}},
    {Does::fill_pointer, {"tc_posix_memalign"}},
    {Does::resize, {"tc_realloc"}},
    {Does::release,
     {"tc_free", "tc_cfree", "tc_free_sized", "tc_delete", "tc_delete_nothrow", "tc_delete_sized", "tc_delete_aligned",
      "tc_delete_aligned_nothrow", "tc_delete_sized_aligned", "tc_deletearray", "tc_deletearray_nothrow",
      "tc_deletearray_sized", "tc_deletearray_aligned", "tc_deletearray_aligned_nothrow",
      "tc_deletearray_sized_aligned"}},
    {Does::allocate_or_throw, {"tc_new", "tc_newarray"}},
    {Does::allocate_aligned_or_throw, {"tc_new_aligned", "tc_newarray_aligned"}},
};

struct Entry {
    const char* name;
    Does does;
};
constexpr std::size_t kCount = [] {
    std::size_t count = 0;
    for (const Group& group : kGroups)
        count +=
            static_cast<std::size_t>(std::ranges::count_if(group.names, [](auto* name) { return name != nullptr; }));
    return count;
}();
constexpr auto kEntries = [] {
    std::array<Entry, kCount> entries{};
    std::size_t count = 0;
    for (const Group& group : kGroups)
        for (const char* name : group.names)
            if (name != nullptr) entries[count++] = {name, group.does};
    return entries;
}();

// Of an entry that throws: the one that gives null instead.
std::string sister_of(const std::string& name) {
    return name + (name.starts_with("_Z") ? "RKSt9nothrow_t" : "_nothrow");
}

// A function that takes fewer arguments than four finds those it takes where it expects them.
Function g_real[kMostAllocators][kCount], g_sister[kMostAllocators][kCount];

template <int kNumber, std::size_t kEntry>
Word hook(Word a, Word b, Word c, Word d) {
    return call_recorded<kEntries[kEntry].does>(g_real[kNumber][kEntry], g_sister[kNumber][kEntry], a, b, c, d);
}

template <int kNumber, std::size_t... kEntry>
constexpr std::array<Function, kCount> hooks_of(std::index_sequence<kEntry...>) {
    return {hook<kNumber, kEntry>...};
}
constexpr auto kIndices = std::make_index_sequence<kCount>();
constexpr std::array<Function, kCount> kHooks[] = {hooks_of<0>(kIndices), hooks_of<1>(kIndices), hooks_of<2>(kIndices)};
static_assert(std::size(kHooks) == kMostAllocators);

}  // namespace

void add_allocator_hooks(int number, const Module& module, std::vector<Hook>* hooks) {
    for (std::size_t i = 0; i < kCount; ++i) {
        g_real[number][i] = reinterpret_cast<Function>(function_in(module, kEntries[i].name));
        if (g_real[number][i] == nullptr) continue;
        if (throws(kEntries[i].does))
            g_sister[number][i] = reinterpret_cast<Function>(function_in(module, sister_of(kEntries[i].name).c_str()));
        hooks->push_back({kEntries[i].name, reinterpret_cast<void*>(kHooks[number][i]),
                          reinterpret_cast<void**>(&g_real[number][i]), Hook::Of::allocator, false});
    }
}

}  // namespace hiwater::interpose
