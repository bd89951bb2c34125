// Stands for a system that refuses what the recorder needs: new threads, or pages made writable, as REFUSING names. To
// be preloaded.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "refused_calls.h"

static int is_refused(const char* what) {
    const char* named = getenv("REFUSING");
    return named != NULL && strcmp(named, what) == 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument) {
    if (is_refused("threads")) return EAGAIN;
    int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
    return real(thread, attributes, work, argument);
}

// Of one page or two, as call slots lie on. The C library's own are larger: stacks of threads.
__attribute__((constructor)) static void refuse_pages(void) {
    struct sock_filter rules[] = {
        LOAD(nr),      UNLESS(SYS_mprotect, 6), LOAD(args[1]),         IF_MORE(8192, 4),
        LOAD(args[2]), MASK(PROT_WRITE),        UNLESS(PROT_WRITE, 1), REFUSE(EACCES),
        ALLOW,
    };
    if (is_refused("pages")) put_in_force(rules, sizeof rules);
}
