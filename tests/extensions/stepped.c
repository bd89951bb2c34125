// A signal handler comes after every instruction of a piece of work (the processor's trap flag), takes and gives back
// memory of its own, and jumps within itself. `step(work)` returns how often it came.
#define _GNU_SOURCE
#include <Python.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static volatile int came;

static void map_and_unmap(void) { munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096); }

static void __attribute__((noinline)) jump_back(jmp_buf to) { longjmp(to, 1); }

static void on_trap(int number) {
    (void)number;
    came = came + 1;
    map_and_unmap();
    jmp_buf here;
    if (setjmp(here) == 0) jump_back(here);
}

static void __attribute__((noinline)) use_heap(void) { free(malloc(700)); }
static void __attribute__((noinline)) use_objects(void) { PyObject_Free(PyObject_Malloc(700)); }
static void __attribute__((noinline)) use_reallocarray(void) { free(reallocarray(malloc(10), 7, 100)); }

static void with_trap(void (*work)(void)) {
    __asm__ volatile("pushfq\n orq $0x100, (%%rsp)\n popfq" ::: "memory", "cc");
    work();
    __asm__ volatile("pushfq\n andq $~0x100, (%%rsp)\n popfq" ::: "memory", "cc");
}

static void (*named(const char* work))(void) {
    if (strcmp(work, "heap") == 0) return use_heap;
    if (strcmp(work, "objects") == 0) return use_objects;
    return strcmp(work, "array") == 0 ? use_reallocarray : map_and_unmap;
}

int step(const char* name) {
    void (*const work)(void) = named(name);
    struct sigaction handling, before;
    memset(&handling, 0, sizeof handling);
    handling.sa_handler = on_trap;
    for (int i = 0; i < 100; ++i) work();  // tables grow with signals blocked, where a trap ends the process
    sigaction(SIGTRAP, &handling, &before);
    came = 0;
    with_trap(work);
    sigaction(SIGTRAP, &before, NULL);
    return came;
}

void keep(void) {
    for (int i = 0; i < 1000; ++i) {
        char* volatile block = malloc(700);
        block[0] = 1;
    }
}
