// Stands for a file system that cannot map files to be written, for every file in the folder that REFUSING names. To be preloaded.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef void* Map(void*, size_t, int, int, int, off_t);

static int is_refused(int descriptor) {
    char link[64], path[4096];
    const char* folder = getenv("REFUSING");
    if (folder == NULL) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = '\0';
    return strncmp(path, folder, strlen(folder)) == 0;
}

void* mmap(void* at, size_t bytes, int protection, int flags, int descriptor, off_t offset) {
    static Map* real;
    if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "mmap");
    if ((flags & MAP_SHARED) && descriptor >= 0 && is_refused(descriptor)) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return real(at, bytes, protection, flags, descriptor, offset);
}
