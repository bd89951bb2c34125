// What a program under stress does natively: threads that end with allocating destructors, mappings that are cut, a
// library to unload.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_key_t key;
static pthread_once_t made = PTHREAD_ONCE_INIT;

// Allocates, and asks to be called again as long as rounds allow: the recorder's own state may be gone by then.
static void allocate_at_the_end(void* value) {
    size_t rounds = *(size_t*)value;
    free(value);
    char* block = malloc(1000 + rounds);
    block = realloc(block, 3000);
    memset(block, 1, 3000);
    free(block);
    if (rounds == 0) return;
    size_t* left = malloc(sizeof *left);
    *left = rounds - 1;
    pthread_setspecific(key, left);
}

static void make_key(void) { pthread_key_create(&key, allocate_at_the_end); }

static void* short_life(void* unused) {
    (void)unused;
    void* blocks[64];
    for (size_t i = 0; i < 64; ++i) blocks[i] = malloc(24 + 40 * i);
    for (size_t i = 0; i < 64; ++i) blocks[i] = realloc(blocks[i], 64 + 8 * i);
    for (size_t i = 0; i < 64; i += 2) free(blocks[i]);
    for (size_t i = 1; i < 64; i += 2) free(blocks[i]);
    pthread_once(&made, make_key);
    size_t* rounds = malloc(sizeof *rounds);
    *rounds = 2;
    pthread_setspecific(key, rounds);
    return NULL;
}

int short_threads(size_t count) {
    pthread_t threads[16];
    if (count > 16) return -1;
    for (size_t i = 0; i < count; ++i)
        if (pthread_create(&threads[i], NULL, short_life, NULL) != 0) return -1;
    for (size_t i = 0; i < count; ++i) pthread_join(threads[i], NULL);
    return 0;
}

// Maps a stretch and cuts, closes, opens, moves and refuses parts of it. `at` chooses where.
int cut_mapping(size_t at) {
    const size_t page = 4096, pages = 16, whole = pages * page;
    char* start = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return -1;
    const size_t middle = (5 + at % (pages - 7)) * page;
    munmap(start + middle, page);
    mprotect(start, middle, PROT_NONE);
    mprotect(start, middle, PROT_READ);
    munmap(start, (size_t)-(long)page);  // refused, and must change nothing
    char* moved = mremap(start, page, 4 * page, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) return -1;
    munmap(moved, 4 * page);
    // The pages that are gone may be another thread's by now: only what is still ours is given back.
    if (middle > page) munmap(start + page, middle - page);
    return munmap(start + middle + page, whole - middle - page);
}

// A signal that a native handler answers with memory that no heap knows of: malloc itself is not for handlers.
static void map_in_handler(int number) {
    (void)number;
    char* volatile page = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    page[0] = 1;
    munmap(page, 3 * 4096);
}

int answer_with_mappings(int number) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = map_in_handler;
    action.sa_flags = SA_RESTART;
    return sigaction(number, &action, NULL);
}

static void* leave_early(void* unused) {
    (void)unused;
    char* held = malloc(5000);
    pthread_cleanup_push(free, held);
    pthread_exit(NULL);  // unwinds, which allocates, and runs the cleanup
    pthread_cleanup_pop(1);
    return NULL;
}

// Threads that nobody waits for, that end by pthread_exit, and that are cancelled in the middle of allocating.
static void* allocate_until_cancelled(void* unused) {
    (void)unused;
    for (;;) {
        int before;
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
        free(realloc(malloc(700), 1400));
        pthread_setcancelstate(before, NULL);
        pthread_testcancel();
    }
    return NULL;
}

int odd_threads(void) {
    pthread_t early, cancelled, detached;
    if (pthread_create(&early, NULL, leave_early, NULL) != 0) return -1;
    if (pthread_create(&cancelled, NULL, allocate_until_cancelled, NULL) != 0) return -1;
    if (pthread_create(&detached, NULL, short_life, NULL) != 0) return -1;
    pthread_detach(detached);
    pthread_join(early, NULL);
    pthread_cancel(cancelled);
    return pthread_join(cancelled, NULL);
}

static int status_of(pid_t child) {
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return status;
}

// A child that goes on allocating, in threads of its own, and forks once more; another that shares our memory until it
// runs a program.
int fork_and_go_on(void) {
    const pid_t child = fork();
    if (child < 0) return -1;
    if (child == 0) {
        for (size_t i = 1; i < 200; ++i) free(realloc(malloc(i), 3 * i));
        if (short_threads(2) != 0) _exit(1);
        const pid_t grandchild = fork();
        if (grandchild == 0) {
            free(malloc(70000));
            _exit(0);
        }
        _exit(status_of(grandchild) != 0);
    }
    if (status_of(child) != 0) return -1;
    const pid_t brief = vfork();
    if (brief == 0) {
        execl("/bin/true", "true", (char*)NULL);
        _exit(1);
    }
    return status_of(brief);
}

// What a library does that keeps memory for its threads: it lets go of some before a fork and takes some again after
// it.
static void* kept_over_forks;

static void before_fork(void) {
    free(kept_over_forks);
    free(realloc(malloc(3000), 6000));
    munmap(mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 8192);
    kept_over_forks = malloc(20000);
}

static void after_fork(void) { kept_over_forks = realloc(kept_over_forks, 30000); }

int handle_forks(void) {
    kept_over_forks = malloc(30000);
    return pthread_atfork(before_fork, after_fork, after_fork);
}
