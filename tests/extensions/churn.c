// What a program under stress does natively: threads that end with allocating destructors, mappings that are cut, a library to unload.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_key_t key;
static pthread_once_t made = PTHREAD_ONCE_INIT;

// Allocates, and asks to be called again as long as rounds allow: the recorder's own state may be gone by then.
static void allocate_at_the_end(void* value) {
    size_t rounds = *(size_t*)value;
    free(value);
    char* block = malloc(1000 + rounds);
    block = realloc(block, 3000);
    memset(block, 1, 3000);
    free(block);
    if (rounds == 0) return;
    size_t* left = malloc(sizeof *left);
    *left = rounds - 1;
    pthread_setspecific(key, left);
}

static void make_key(void) { pthread_key_create(&key, allocate_at_the_end); }

static void* short_life(void* unused) {
    (void)unused;
    void* blocks[64];
    for (size_t i = 0; i < 64; ++i) blocks[i] = malloc(24 + 40 * i);
    for (size_t i = 0; i < 64; ++i) blocks[i] = realloc(blocks[i], 64 + 8 * i);
    for (size_t i = 0; i < 64; i += 2) free(blocks[i]);
    for (size_t i = 1; i < 64; i += 2) free(blocks[i]);
    pthread_once(&made, make_key);
    size_t* rounds = malloc(sizeof *rounds);
    *rounds = 2;
    pthread_setspecific(key, rounds);
    return NULL;
}

int short_threads(size_t count) {
    pthread_t threads[16];
    if (count > 16) return -1;
    for (size_t i = 0; i < count; ++i)
        if (pthread_create(&threads[i], NULL, short_life, NULL) != 0) return -1;
    for (size_t i = 0; i < count; ++i) pthread_join(threads[i], NULL);
    return 0;
}

// Maps a stretch and cuts, closes, opens, moves and refuses parts of it. `at` chooses where.
int cut_mapping(size_t at) {
    const size_t page = 4096, pages = 16, whole = pages * page;
    char* start = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return -1;
    const size_t middle = (5 + at % (pages - 7)) * page;
    munmap(start + middle, page);
    mprotect(start, middle, PROT_NONE);
    mprotect(start, middle, PROT_READ);
    munmap(start, (size_t)-(long)page);  // refused, and must change nothing
    char* moved = mremap(start, page, 4 * page, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) return -1;
    munmap(moved, 4 * page);
    // The pages that are gone may be another thread's by now: only what is still ours is given back.
    if (middle > page) munmap(start + page, middle - page);
    return munmap(start + middle + page, whole - middle - page);
}
