// Loops of heap calls and nothing else, for counting instructions. The barriers keep the compiler from removing the pairs.
#include <stdlib.h>

#define KEEP(block) __asm__ volatile("" : : "r"(block) : "memory")

void malloc_free(size_t rounds) {
    for (size_t i = 0; i < rounds; ++i) {
        void* block = malloc(64);
        KEEP(block);
        free(block);
    }
}

void realloc_free(size_t rounds) {
    for (size_t i = 0; i < rounds; ++i) {
        void* block = realloc(NULL, 64);
        KEEP(block);
        block = realloc(block, 96);
        KEEP(block);
        free(block);
    }
}
