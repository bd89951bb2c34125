// A tool that puts its functions into Python's allocators, and puts them there again if it does not find them there, on
// top of what it finds, as Scalene does.
#include <Python.h>

static PyMemAllocatorEx before;
static long calls, foreign_contexts;

static void* allocate(void* context, size_t bytes) {
    foreign_contexts += context != &before;
    ++calls;
    return before.malloc(before.ctx, bytes);
}
static void* allocate_zeroed(void* context, size_t count, size_t bytes) {
    foreign_contexts += context != &before;
    return before.calloc(before.ctx, count, bytes);
}
static void* reallocate(void* context, void* block, size_t bytes) {
    foreign_contexts += context != &before;
    return before.realloc(before.ctx, block, bytes);
}
static void release(void* context, void* block) {
    foreign_contexts += context != &before;
    before.free(before.ctx, block);
}

// Returns whether they were missing.
int put_in_place(void) {
    PyMemAllocatorEx now, ours = {&before, allocate, allocate_zeroed, reallocate, release};
    PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &now);
    if (now.malloc == allocate) return 0;
    before = now;
    PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &ours);
    return 1;
}

void leave(void) { PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &before); }
long calls_so_far(void) { return calls; }
long foreign_contexts_so_far(void) { return foreign_contexts; }
