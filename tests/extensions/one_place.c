// Preloaded: a malloc whose blocks of ONE_PLACE bytes cost nothing and are no block of the C library's. A signal's
// handler may jump out of it at any moment, which it may not out of the C library's own.
#include <stddef.h>
#include <string.h>

enum { ONE_PLACE = 4242 };
static _Thread_local _Alignas(16) char place[ONE_PLACE] __attribute__((tls_model("initial-exec")));

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void*, size_t);
extern void __libc_free(void*);

void* malloc(size_t bytes) { return bytes == ONE_PLACE ? place : __libc_malloc(bytes); }
void* calloc(size_t count, size_t each) { return __libc_calloc(count, each); }
// Whoever else asks for that many bytes, as the import of a file of some size does, may give the block another size.
void* realloc(void* block, size_t bytes) {
    if (block != place) return __libc_realloc(block, bytes);
    void* const moved = __libc_malloc(bytes);
    return moved == NULL ? NULL : memcpy(moved, place, bytes < ONE_PLACE ? bytes : ONE_PLACE);
}
void free(void* block) {
    if (block != place) __libc_free(block);
}
