// Preloaded: makes one question to malloc about its heaps last long, with its locks taken nearly all the time, and says
// when that is.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <time.h>

static atomic_int is_to_last, under_way;

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

struct mallinfo2 mallinfo2(void) {
    struct mallinfo2 (*const real)(void) = (struct mallinfo2 (*)(void))dlsym(RTLD_NEXT, "mallinfo2");
    const double end = seconds() + 0.3;
    struct mallinfo2 found;
    under_way = is_to_last;
    do found = real();
    while (is_to_last && seconds() < end);
    under_way = 0;
    return found;
}

void let_it_last(void) { is_to_last = 1; }
int is_under_way(void) { return under_way; }
