// Preloaded: ends the process where a function of the loader that takes its first lock is called within
// dl_iterate_phdr(), which holds the second. A thread in dlopen() takes them in the other order.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

typedef int Visit(struct dl_phdr_info*, size_t, void*);
static _Thread_local int depth;

static void* next(const char* name) {
    void* found = dlvsym(RTLD_NEXT, name, "GLIBC_2.34");
    if (found == NULL) found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.3");
    return found != NULL ? found : dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5");
}

static void check(const char* name) {
    if (depth == 0) return;
    fprintf(stderr, "%s() within dl_iterate_phdr()\n", name);
    abort();
}

int dl_iterate_phdr(Visit* visit, void* data) {
    static int (*real)(Visit*, void*);
    if (real == NULL) real = (int (*)(Visit*, void*))next("dl_iterate_phdr");
    ++depth;
    const int result = real(visit, data);
    --depth;
    return result;
}

int dladdr(const void* address, Dl_info* info) {
    check("dladdr");
    return ((int (*)(const void*, Dl_info*))next("dladdr"))(address, info);
}

int dladdr1(const void* address, Dl_info* info, void** extra, int flags) {
    check("dladdr1");
    return ((int (*)(const void*, Dl_info*, void**, int))next("dladdr1"))(address, info, extra, flags);
}

void* dlopen(const char* file, int mode) {
    check("dlopen");
    return ((void* (*)(const char*, int))next("dlopen"))(file, mode);
}

int dlclose(void* library) {
    check("dlclose");
    return ((int (*)(void*))next("dlclose"))(library);
}

void* dlsym(void* library, const char* name) {
    check("dlsym");
    return ((void* (*)(void*, const char*))next("dlsym"))(library, name);
}
