// A signal handler that jumps out of what a recorder does under its lesser locks: `run(work)` returns 0 where the jump
// came and other threads go on. And one that forks there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static sigjmp_buf out;
static volatile int jumps;
static void (*interrupt_next)(const char*);

static void on_alarm(int number) {
    (void)number;
    jumps = jumps + 1;
    siglongjmp(out, 1);
}

// The recorder makes this thread's state.
static void* first_event(void* unused) {
    if (sigsetjmp(out, 1) == 0) {
        interrupt_next("pthread_setspecific");
        free(malloc(100));
    }
    interrupt_next(NULL);
    return unused;
}

// Blocks far from each other, until the recorder's table of live blocks grows.
static void* far_blocks(void* unused) {
    static void* blocks[4000];
    static volatile int count;
    free(malloc(100));
    if (sigsetjmp(out, 1) == 0)
        for (count = 0; count < 4000 && jumps == 0; count = count + 1) {
            interrupt_next("pthread_sigmask");  // malloc calls none
            blocks[count] = malloc(4 << 20);
        }
    interrupt_next(NULL);
    for (int i = 0; i < count; ++i) free(blocks[i]);
    return unused;
}

// A program that is not there: the recorder closes the capture before, and opens it again afterwards.
static void* failing_exec(void* unused) {
    char* const nothing[] = {NULL};
    if (sigsetjmp(out, 1) == 0) {
        interrupt_next("clock_gettime");
        execve("/nowhere/at/all", nothing, nothing);
    }
    interrupt_next(NULL);
    return unused;
}

static void* go_on(void* unused) {
    for (int i = 0; i < 1000; ++i) free(malloc(100 + i));
    return unused;
}

// Looked up before anything is recorded: a thread made by it has no state before its first event.
static int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
__attribute__((constructor)) static void look_up(void) {
    create = (int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*))dlsym(RTLD_DEFAULT, "pthread_create");
}

static int in_a_thread(void* (*work)(void*)) {
    pthread_t thread;
    return create(&thread, NULL, work, NULL) != 0 || pthread_join(thread, NULL) != 0;
}

int run(const char* work) {
    struct sigaction handling, before;
    interrupt_next = (void (*)(const char*))dlsym(RTLD_DEFAULT, "interrupt_next");
    if (interrupt_next == NULL) return 1;
    memset(&handling, 0, sizeof handling);
    handling.sa_handler = on_alarm;
    if (sigaction(SIGALRM, &handling, &before) != 0) return 2;
    jumps = 0;
    if (strcmp(work, "first_event") == 0 && in_a_thread(first_event)) return 3;
    if (strcmp(work, "far_blocks") == 0 && in_a_thread(far_blocks)) return 4;
    if (strcmp(work, "failing_exec") == 0 && in_a_thread(failing_exec)) return 6;
    if (jumps != 1) return 10 + jumps;
    if (in_a_thread(go_on)) return 5;
    go_on(NULL);
    return sigaction(SIGALRM, &before, NULL) != 0 ? 7 : 0;
}

static volatile int forks;
static void fork_and_wait(int number) {
    (void)number;
    int status = -1;
    const pid_t child = fork();
    if (child == 0) _exit(7);
    if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7) forks = forks + 1;
}

// From now on the handler forks. How many children ended well: forks_until_now().
int fork_in_handlers(void) {
    struct sigaction handling;
    memset(&handling, 0, sizeof handling);
    handling.sa_handler = fork_and_wait;
    return sigaction(SIGALRM, &handling, NULL);
}
int forks_until_now(void) { return forks; }
