// malloc reached in ways that leave no call slot: through dlsym, and through pointers stored before anybody looked.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef void* Allocate(size_t);

// Relocated when this library is loaded: one in writable data, one in data that the loader makes read-only afterwards.
Allocate* stored_pointer = malloc;
Allocate* const stored_constant = malloc;

struct Table {
    Allocate* allocate;
    void (*release)(void*);
};
static struct Table stored_table = {malloc, free};

void* take_stored(size_t size) { return stored_pointer(size); }

void* take_stored_constant(size_t size) {
    Allocate* const volatile* pointer = &stored_constant;  // volatile, or the compiler calls malloc directly
    return (*pointer)(size);
}

void* take_table(size_t size) {
    struct Table* volatile table = &stored_table;
    return table->allocate(size);
}

void give_back_table(void* block) {
    struct Table* volatile table = &stored_table;
    table->release(block);
}

void* take_dlsym_default(size_t size) {
    Allocate* allocate = (Allocate*)dlsym(RTLD_DEFAULT, "malloc");
    return allocate(size);
}

void* take_dlsym_next(size_t size) {
    Allocate* allocate = (Allocate*)dlsym(RTLD_NEXT, "malloc");
    return allocate(size);
}

void* take_dlsym_handle(size_t size) {
    void* handle = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    Allocate* allocate = (Allocate*)dlsym(handle, "malloc");
    void* block = allocate(size);
    dlclose(handle);
    return block;
}

void* take_dlvsym(size_t size) {
    Allocate* allocate = (Allocate*)dlvsym(RTLD_DEFAULT, "malloc", "GLIBC_2.2.5");
    return allocate(size);
}

// A pointer kept from a lookup made while recording must go on working after the recorder has left.
static Allocate* kept_pointer;
void keep_dlsym(void) { kept_pointer = (Allocate*)dlsym(RTLD_DEFAULT, "malloc"); }
void* take_kept(size_t size) { return kept_pointer(size); }

// Pages of this library's data: one that it closed, and one that it wrote its pointer into and then made read-only.
#define PAGE 4096
static char closed_pages[4 * PAGE] __attribute__((aligned(PAGE)));
int close_pages(void) {
    *(Allocate**)closed_pages = malloc;
    *(Allocate**)(closed_pages + 2 * PAGE) = malloc;
    return mprotect(closed_pages, PAGE, PROT_NONE) + mprotect(closed_pages + 2 * PAGE, PAGE, PROT_READ);
}

// A thread's own block, which the C library frees at the thread's end by a pointer that it keeps.
static pthread_key_t key;
static void* keep_block(void* size) {
    pthread_setspecific(key, malloc((size_t)size));
    return NULL;
}
int make_key(void) { return pthread_key_create(&key, free); }
int allocate_in_thread_with_key(size_t size) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, keep_block, (void*)size) != 0) return -1;
    return pthread_join(thread, NULL);
}

size_t kept_address(void) { return (size_t)kept_pointer; }
