// A signal's handler comes in the midst of calls of hooked functions and jumps: out of them, as a time limit does
// (`out`, `out_of_other_stack`), or within itself (`within`). `run(manner, work, jumps)` returns 0 where all threads go
// on afterwards.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>

enum { ONE_PLACE = 4242 };
static sigjmp_buf out;
static volatile int jumps_left, stays_within, is_over;
static volatile unsigned long others_rounds;

static void arm(long microseconds) {
    const struct itimerval soon = {{0, 0}, {0, microseconds}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void __attribute__((noinline)) jump_back(jmp_buf to) { longjmp(to, 1); }

static void on_alarm(int number) {
    (void)number;
    jumps_left = jumps_left - 1;
    arm(50 + 37 * jumps_left % 200);
    if (!stays_within) siglongjmp(out, 1);
    jmp_buf here;
    if (setjmp(here) == 0) jump_back(here);
}

static void use_heap(void) { free(malloc(ONE_PLACE)); }
static void use_mappings(void) { munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096); }

static void* go_on(void* unused) {
    while (!is_over) {
        free(malloc(100));
        others_rounds = others_rounds + 1;
    }
    return unused;
}

static void work_and_jump(void (*work)(void)) {
    if (sigsetjmp(out, 1) == 0) arm(200);  // not before there is a place to jump to
    while (jumps_left > 0) work();
}

int run(const char* manner, const char* work, int jumps) {
    static char other_stack[65536];
    const stack_t other = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    struct sigaction handling;
    sigset_t alarm;
    pthread_t thread;
    memset(&handling, 0, sizeof handling);
    handling.sa_handler = on_alarm;
    if (strcmp(manner, "out_of_other_stack") == 0) {
        handling.sa_flags = SA_ONSTACK;
        if (sigaltstack(&other, NULL) != 0) return 1;
    }
    stays_within = strcmp(manner, "within") == 0;
    is_over = 0;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    if (pthread_create(&thread, NULL, go_on, NULL) != 0) return 2;
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    if (sigaction(SIGALRM, &handling, NULL) != 0) return 3;
    jumps_left = jumps;
    work_and_jump(strcmp(work, "heap") == 0 ? use_heap : use_mappings);
    arm(0);
    signal(SIGALRM, SIG_IGN);
    for (const unsigned long before = others_rounds; others_rounds < before + 1000;) use_heap();
    is_over = 1;
    return pthread_join(thread, NULL) == 0 ? 0 : 4;
}

void keep(void) {
    for (int i = 0; i < 1000; ++i) {
        char* volatile block = malloc(700);
        block[0] = 1;
    }
}
