// Loops of heap calls and nothing else, for counting instructions. The barriers keep the compiler from removing the pairs.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define KEEP(block) __asm__ volatile("" : : "r"(block) : "memory")

// Where a block lies decides what malloc does with it, and whether it shares its part of the recorder's tables with large blocks. So the
// loops run where nothing but blocks of their own sizes lies, whatever the heap was used for before: AROUND of them on each side, 16 KiB
// and more.
enum { SMALL = 64, GROWN = 96, ENOUGH = 4096, AROUND = 256, FEW = 16 };

// What malloc gives next for a block of that size is between others, which stay.
static void make_room(size_t bytes) {
    static void* all[ENOUGH];
    for (int i = 0; i < ENOUGH; ++i) all[i] = malloc(bytes);
    int at = ENOUGH - AROUND - 1;  // near the end, where the heap had to grow
    const size_t each = (uintptr_t)all[at + 1] - (uintptr_t)all[at];
    if ((uintptr_t)all[at + AROUND] - (uintptr_t)all[at - AROUND] != 2 * AROUND * each) abort();
    for (int i = 0; i < FEW; ++i) free(all[at + 2 * i]);
}

void malloc_free(size_t rounds) {
    make_room(SMALL);
    for (size_t i = 0; i < rounds; ++i) {
        void* block = malloc(SMALL);
        KEEP(block);
        free(block);
    }
}

// The block has another behind it, so it moves as it grows.
void realloc_free(size_t rounds) {
    make_room(GROWN);
    make_room(SMALL);
    for (size_t i = 0; i < rounds; ++i) {
        void* block = realloc(NULL, SMALL);
        KEEP(block);
        block = realloc(block, GROWN);
        KEEP(block);
        free(block);
    }
}
