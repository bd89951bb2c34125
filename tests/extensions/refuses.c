// Stands for a system that refuses what the recorder needs: new threads, or pages made writable, as REFUSING names. To be preloaded.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int is_refused(const char* what) {
    const char* named = getenv("REFUSING");
    return named != NULL && strcmp(named, what) == 0;
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*work)(void*), void* argument) {
    if (is_refused("threads")) return EAGAIN;
    int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
    return real(thread, attributes, work, argument);
}

int mprotect(void* address, size_t length, int protection) {
    if (is_refused("pages") && (protection & PROT_WRITE) != 0) {
        errno = EACCES;
        return -1;
    }
    int (*real)(void*, size_t, int) = dlsym(RTLD_NEXT, "mprotect");
    return real(address, length, protection);
}
