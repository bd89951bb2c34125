// Work that goes on for long: the tests count what recording costs at its beginning and at its end.
#include <pthread.h>
#include <stdlib.h>

enum { kKept = 64 };

// Allocates and frees `count` blocks of 17 to 4,112 bytes; a block lives until 64 younger ones are there.
void allocate_and_free(size_t count) {
    char* volatile kept[kKept] = {0};
    for (size_t i = 0; i < count; ++i) {
        free(kept[i % kKept]);
        kept[i % kKept] = malloc(17 + (i * 0x9E3779B97F4A7C15u >> 52));
    }
    for (size_t i = 0; i < kKept; ++i) free(kept[i]);
}

static void* live_shortly(void* unused) {
    allocate_and_free(100);
    return unused;
}

// Starts `count` threads one after another; each allocates a little.
int start_threads(size_t count) {
    for (size_t i = 0; i < count; ++i) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, live_shortly, NULL) != 0 || pthread_join(thread, NULL) != 0) return -1;
    }
    return 0;
}
