// The entries of other allocators than the C library's. Which of them are there is the allocator's affair: those that
// are not are null.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

extern "C" {

void* mallocx(std::size_t, int) __attribute__((weak));
void* rallocx(void*, std::size_t, int) __attribute__((weak));
std::size_t xallocx(void*, std::size_t, std::size_t, int) __attribute__((weak));
void dallocx(void*, int) __attribute__((weak));
void sdallocx(void*, std::size_t, int) __attribute__((weak));
void* mi_malloc(std::size_t) __attribute__((weak));
void* mi_calloc(std::size_t, std::size_t) __attribute__((weak));
void* mi_realloc(void*, std::size_t) __attribute__((weak));
void* mi_new(std::size_t) __attribute__((weak));
void mi_free(void*) __attribute__((weak));
void* tc_malloc(std::size_t) __attribute__((weak));
void* tc_new(std::size_t) __attribute__((weak));
void* tc_realloc(void*, std::size_t) __attribute__((weak));
void tc_free(void*) __attribute__((weak));
void tc_delete_sized(void*, std::size_t) __attribute__((weak));

void* take_mallocx(std::size_t size) { return mallocx(size, 0); }
void* take_rallocx(void* block, std::size_t size) { return rallocx(block, size, 0); }
std::size_t grow_xallocx(void* block, std::size_t size, std::size_t more) { return xallocx(block, size, more, 0); }
void give_back_dallocx(void* block) { dallocx(block, 0); }
void give_back_sdallocx(void* block, std::size_t size) { sdallocx(block, size, 0); }
void* take_mi_malloc(std::size_t size) { return mi_malloc(size); }
void* take_mi_calloc(std::size_t count, std::size_t size) { return mi_calloc(count, size); }
void* take_mi_realloc(void* block, std::size_t size) { return mi_realloc(block, size); }
void* take_mi_new(std::size_t size) { return mi_new(size); }
void give_back_mi_free(void* block) { mi_free(block); }
void* take_tc_malloc(std::size_t size) { return tc_malloc(size); }
void* take_tc_new(std::size_t size) { return tc_new(size); }
void* take_tc_realloc(void* block, std::size_t size) { return tc_realloc(block, size); }
void give_back_tc_free(void* block) { tc_free(block); }
void give_back_tc_delete_sized(void* block, std::size_t size) { tc_delete_sized(block, size); }

void* take_new(std::size_t size) { return ::operator new(size); }
void* take_new_array(std::size_t size) { return ::operator new[](size); }
void* take_new_nothrow(std::size_t size) { return ::operator new(size, std::nothrow); }
void* take_aligned_new(std::size_t alignment, std::size_t size) {
    return ::operator new(size, std::align_val_t(alignment));
}
void* take_aligned_new_nothrow(std::size_t alignment, std::size_t size) {
    return ::operator new[](size, std::align_val_t(alignment), std::nothrow);
}
void give_back_new(void* block) { ::operator delete(block); }
void give_back_new_array(void* block) { ::operator delete[](block); }
void give_back_new_sized(void* block, std::size_t size) { ::operator delete(block, size); }
void give_back_aligned_new(void* block, std::size_t alignment) {
    ::operator delete(block, std::align_val_t(alignment));
}

std::size_t refused_new() {
    try {
        return ::operator new(SIZE_MAX / 4) == nullptr;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

// `count` blocks, chained through their first word: by malloc, or by operator new.
void* take_many(std::size_t count, std::size_t size, std::size_t by_new) {
    void* head = nullptr;
    for (std::size_t i = 0; i < count; ++i) {
        auto* block = static_cast<void**>(by_new != 0 ? ::operator new(size) : std::malloc(size));
        *block = head;
        head = block;
    }
    return head;
}
void give_back_many(void* head, std::size_t by_new) {
    while (head != nullptr) {
        void* next = *static_cast<void**>(head);
        by_new != 0 ? ::operator delete(head) : std::free(head);
        head = next;
    }
}

// `count` blocks by the function at an address, as PyMem_Malloc; all given back by the one at another.
static void* g_taken[100'000];
void take_all_by(void* (*take)(std::size_t), std::size_t count, std::size_t size) {
    for (std::size_t i = 0; i < count; ++i) g_taken[i] = take(size);
}
void resize_all_by(void* (*resize)(void*, std::size_t), std::size_t count, std::size_t size) {
    for (std::size_t i = 0; i < count; ++i) g_taken[i] = resize(g_taken[i], size);
}
void give_all_back_by(void (*give)(void*), std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) give(g_taken[i]);
}

}  // extern "C"
