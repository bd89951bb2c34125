// malloc reached in ways that leave no call slot: through dlsym, and through pointers stored before anybody looked.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

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
