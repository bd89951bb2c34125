// One function for each door of the heap. Each makes exactly one call, so that a test knows the size and the line.
// It is linked in several ways (see compiled.py), because each way leaves the call slots somewhere else.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Not in every libc; where they are missing the address is null and must stay null under a recorder.
extern void free_sized(void* block, size_t size) __attribute__((weak));
extern void free_aligned_sized(void* block, size_t alignment, size_t size) __attribute__((weak));
extern void __libc_free(void* block);

void* take_malloc(size_t size) { return malloc(size); }
void* take_calloc(size_t count, size_t size) { return calloc(count, size); }
void* take_realloc(void* block, size_t size) { return realloc(block, size); }
void* take_reallocarray(void* block, size_t count, size_t size) { return reallocarray(block, count, size); }
void* take_aligned_alloc(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
void* take_memalign(size_t alignment, size_t size) { return memalign(alignment, size); }
void* take_valloc(size_t size) { return valloc(size); }
void* take_pvalloc(size_t size) { return pvalloc(size); }

void* take_posix_memalign(size_t alignment, size_t size) {
    void* block = NULL;
    return posix_memalign(&block, alignment, size) == 0 ? block : NULL;
}

// posix_memalign with an alignment that is no power of two fails with EINVAL and leaves the pointer alone.
int refused_posix_memalign(size_t size) {
    void* block = NULL;
    return posix_memalign(&block, 24, size);
}

void give_back(void* block) { free(block); }

// A free that passes every call slot and every pointer by: its address is nowhere as it is.
static uintptr_t hidden;
__attribute__((constructor)) static void hide(void) { hidden = ~(uintptr_t)&__libc_free; }
void give_back_unseen(void* block) { ((void (*)(void*))~hidden)(block); }

static void (*volatile other_name)(void*) = __libc_free;
void give_back_by_other_name(void* block) { other_name(block); }

int has_free_sized(void) { return free_sized != NULL; }
int has_free_aligned_sized(void) { return free_aligned_sized != NULL; }
void give_back_sized(void* block, size_t size) { free_sized(block, size); }
void give_back_aligned_sized(void* block, size_t alignment, size_t size) { free_aligned_sized(block, alignment, size); }

// strdup allocates inside libc: length + 1 bytes.
char* take_strdup(const char* text) { return strdup(text); }

size_t page_rounded(size_t size) {
    const size_t page = 4096;
    return (size + page - 1) / page * page;
}

// Many small blocks in one call, chained through their first word so that they can be given back.
void* take_chain(size_t count, size_t size) {
    void* head = NULL;
    for (size_t i = 0; i < count; ++i) {
        void** block = malloc(size);
        *block = head;
        head = block;
    }
    return head;
}

void give_back_chain(void* head) {
    while (head) {
        void* next = *(void**)head;
        free(head);
        head = next;
    }
}

// malloc and an unseen free, over and over: every round the allocator hands out an address that a recorder believes
// taken.
void* reuse_unseen(size_t rounds, size_t size) {
    void* block = malloc(size);
    for (size_t i = 0; i < rounds; ++i) {
        give_back_unseen(block);
        block = malloc(size);
    }
    return block;
}

// The same with calloc as the second taker. Sizes above 1 kB: below, calloc leaves the thread's own cache of free
// blocks alone.
void* reuse_unseen_by_calloc(size_t rounds, size_t size) {
    void* block = malloc(size);
    for (size_t i = 0; i < rounds; ++i) {
        give_back_unseen(block);
        block = calloc(1, size);
    }
    return block;
}
