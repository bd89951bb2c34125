// Calls of hooked functions in the contexts of native/README.md: `run(context, action, rounds)` performs an action in a
// context, and returns 0 where it went as it should. `begin(context, action)` prepares what must be there before a
// recording.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int Action(void);

#define KEPT_BLOCKS 1000
#define KEPT_BYTES 700

// --- actions: 0 where all went well
// -------------------------------------------------------------------------------------------------

static int wait_for(pid_t child, int expected) {
    int status = -1;
    if (child < 0) return 10;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 11;
    return WIFEXITED(status) && WEXITSTATUS(status) == expected ? 0 : 12;
}

// Each of these calls leaves errno as it was.
enum { ERRNO_BEFORE = 4321 };
static int is_errno_kept(void) { return errno == ERRNO_BEFORE; }

static int use_heap(void) {
    void* aligned = NULL;
    errno = ERRNO_BEFORE;
    char* block = malloc(40);
    if (!is_errno_kept()) return 3;
    block = realloc(block, 4000);
    if (!is_errno_kept()) return 4;
    char* zeroed = calloc(10, 30);
    if (!is_errno_kept()) return 5;
    if (posix_memalign(&aligned, 64, 900) != 0 || block == NULL || zeroed == NULL) return 1;
    if (!is_errno_kept()) return 6;
    free(block);
    free(zeroed);
    free(aligned);
    return is_errno_kept() ? 0 : 2;
}

static int use_mappings(void) {
    const size_t page = 4096;
    errno = ERRNO_BEFORE;
    char* at = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 1;
    if (!is_errno_kept()) return 6;
    at[0] = 1;
    if (mprotect(at + page, page, PROT_NONE) != 0 || munmap(at + page, page) != 0 ||
        munmap(at + 2 * page, 2 * page) != 0)
        return 2;
    char* moved = mremap(at, page, 8 * page, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) return 3;
    if (!is_errno_kept()) return 7;
    if (munmap(moved, 8 * page) != 0) return 4;
    return is_errno_kept() ? 0 : 5;
}

static int use_segment(void) {
    const int id = shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600);
    if (id < 0) return 1;
    errno = ERRNO_BEFORE;
    char* at = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    if (at == (char*)-1) return 2;
    at[0] = 1;
    if (shmdt(at) != 0) return 3;
    return is_errno_kept() ? 0 : 4;
}

static int use_shared_object(void) {
    int before;
    errno = ERRNO_BEFORE;
    const int fd = memfd_create("contexts", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 8192) != 0) return 1;
    if (!is_errno_kept()) return 2;
    char* at = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return 3;
    char* again = mremap(at, 0, 8192, MREMAP_MAYMOVE);
    if (again == MAP_FAILED) return 4;
    at[0] = 7;
    if (again[0] != 7 || munmap(at, 8192) != 0 || munmap(again + 4096, 4096) != 0 || munmap(again, 4096) != 0) return 5;
    const int is_kept = is_errno_kept();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);  // these two are cancellation points
    close(fd);
    const int file = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    const int is_still_kept = file < 0 || is_errno_kept();
    if (file >= 0) close(file);
    pthread_setcancelstate(before, NULL);
    return !is_kept ? 6 : is_still_kept ? 0 : 7;
}

static void* live_shortly(void* unused) {
    (void)unused;
    free(malloc(300));
    return NULL;
}

static int make_thread(void) {
    pthread_t thread;
    int before;
    errno = ERRNO_BEFORE;
    if (pthread_create(&thread, NULL, live_shortly, NULL) != 0) return 1;
    const int is_kept = is_errno_kept();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);  // to wait is a cancellation point
    const int error = pthread_join(thread, NULL);
    pthread_setcancelstate(before, NULL);
    return error != 0 ? 2 : is_kept ? 0 : 3;
}

static void* open_for_ever(void* path) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? NULL : path;
}

// A thread that is ended while it waits in a hooked function, which is a cancellation point of the program's own.
static int cancel_open(void) {
    char folder[] = "/tmp/hiwater-test-XXXXXX", path[64];
    if (mkdtemp(folder) == NULL) return 1;
    snprintf(path, sizeof path, "%s/pipe", folder);
    if (mkfifo(path, 0600) != 0) return 2;
    pthread_t thread;
    void* result = NULL;
    if (pthread_create(&thread, NULL, open_for_ever, path) != 0) return 3;
    if (pthread_cancel(thread) != 0 || pthread_join(thread, &result) != 0) return 4;
    unlink(path);
    rmdir(folder);
    return result == PTHREAD_CANCELED ? 0 : 5;
}

static int name_thread(void) {
    errno = ERRNO_BEFORE;
    if (prctl(PR_SET_NAME, "an-action", 0, 0, 0) != 0) return 1;
    if (pthread_setname_np(pthread_self(), "another") != 0) return 2;
    return is_errno_kept() ? 0 : 3;
}

static int make_child(void) {
    errno = ERRNO_BEFORE;
    const pid_t child = fork();
    if (child == 0) _exit(is_errno_kept() ? 7 : 8);
    if (child > 0 && !is_errno_kept()) return 9;
    return wait_for(child, 7);
}

static int make_quick_child(void) {
    const pid_t child = vfork();
    if (child == 0) _exit(7);
    return wait_for(child, 7);
}

// A child made past the C library's fork. In a signal handler it returns, and goes on with what the signal interrupted.
static volatile int is_child, is_in_handler;
static int make_raw_child(void) {
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0 && !is_in_handler) _exit(7);
    if (child == 0) return is_child = 1, 0;
    return wait_for(child, 7);
}

extern char** environ;
static char* const shell[] = {"/bin/sh", "-c", "exit 7", NULL};

static int spawn(void) {
    pid_t child = -1;
    if (posix_spawn(&child, "/bin/sh", NULL, NULL, shell, environ) != 0) return 1;
    return wait_for(child, 7);
}

static int fail_to_become_another(void) {
    return execve("/nowhere/at/all", shell, environ) == -1 && errno == ENOENT ? 0 : 1;
}

static const char* library_to_load;

static int load(void) {
    void* library = dlopen(library_to_load, RTLD_NOW);
    if (library == NULL) return 1;
    void* (*take)(size_t) = (void* (*)(size_t))dlsym(library, "take_after_load");
    if (take == NULL) return 2;
    free(take(500));
    return dlclose(library) == 0 ? 0 : 3;
}

static int leave(void) { _exit(7); }
static int become_another(void) { return execve("/bin/sh", shell, environ); }

static const struct {
    const char* name;
    Action* act;
} actions[] = {{"heap", use_heap},
               {"mappings", use_mappings},
               {"segment", use_segment},
               {"cancelled_open", cancel_open},
               {"shared_object", use_shared_object},
               {"thread", make_thread},
               {"name", name_thread},
               {"fork", make_child},
               {"raw_fork", make_raw_child},
               {"vfork", make_quick_child},
               {"spawn", spawn},
               {"failing_exec", fail_to_become_another},
               {"load", load},
               {"_exit", leave},
               {"exec", become_another}};

static Action* action_of(const char* name) {
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; ++i)
        if (strcmp(actions[i].name, name) == 0) return actions[i].act;
    return NULL;
}

// --- contexts
// --------------------------------------------------------------------------------------------------------------------------

static Action* volatile acting;
static volatile int rounds_left, failure;

static void act_once(void) {
    if (rounds_left <= 0) return;
    rounds_left = rounds_left - 1;
    const int code = acting();
    if (code != 0 && failure == 0) failure = code;
}

static void arm(long microseconds) {
    const struct itimerval soon = {{0, 0}, {0, microseconds}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

static void on_alarm(int number) {
    (void)number;
    const int saved_errno = errno;
    is_in_handler = 1;
    act_once();
    is_in_handler = 0;
    errno = saved_errno;
    if (rounds_left > 0 && !is_child) arm(50 + 37 * rounds_left % 400);
}

static void* (*allocate)(size_t) = malloc;
static void (*give_back)(void*) = free;

// What a signal falls into.
static int act_in_handler(void) {
    struct sigaction handling;
    memset(&handling, 0, sizeof handling);
    handling.sa_handler = on_alarm;
    handling.sa_flags = SA_RESTART;
    if (sigaction(SIGALRM, &handling, NULL) != 0) return 20;
    static void* blocks[64];
    arm(200);
    for (size_t i = 0; rounds_left > 0; ++i) {
        give_back(blocks[i % 64]);
        blocks[i % 64] = allocate(16 + i % 400);
        if (is_child) _exit(7);
        if (i % 256 == 0 && use_mappings() != 0) return 21;
    }
    if (is_child) _exit(7);
    for (size_t i = 0; i < 64; ++i) {
        give_back(blocks[i]);
        blocks[i] = NULL;
    }
    return 0;
}

static volatile int in_prepare, in_parent, in_child;
static void prepare(void) {
    if (in_prepare) act_once();
}
static void parent(void) {
    if (in_parent) act_once();
}
static void child(void) {
    if (in_child) act_once();
}

static pthread_mutex_t foreign = PTHREAD_MUTEX_INITIALIZER;
static volatile int handlers_lock;
static void lock_foreign(void) {
    if (handlers_lock) pthread_mutex_lock(&foreign);
}
static void unlock_foreign(void) {
    if (handlers_lock) pthread_mutex_unlock(&foreign);
}

static volatile int is_over;
static void* allocate_under_foreign(void* unused) {
    (void)unused;
    while (!is_over) {
        pthread_mutex_lock(&foreign);
        free(realloc(malloc(100), 2000));
        void* at = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(at, 4096);
        pthread_mutex_unlock(&foreign);
    }
    return NULL;
}

static void* busy_malloc(void* unused) {
    (void)unused;
    void* blocks[32] = {0};
    for (size_t i = 0; !is_over; ++i) {
        free(blocks[i % 32]);
        blocks[i % 32] = malloc(16 + i % 900);
    }
    for (size_t i = 0; i < 32; ++i) free(blocks[i]);
    return NULL;
}

// Threads allocate meanwhile, one of them under a mutex that a fork handler takes, too.
static int fork_often(void) {
    pthread_t threads[2];
    is_over = 0;
    if (pthread_create(&threads[0], NULL, allocate_under_foreign, NULL) != 0) return 30;
    if (pthread_create(&threads[1], NULL, busy_malloc, NULL) != 0) return 31;
    int code = 0;
    while (rounds_left > 0 && code == 0) {
        const int before = rounds_left;
        handlers_lock = 1;
        const pid_t made = fork();
        if (made == 0) {
            free(malloc(100));
            _exit(failure != 0 ? failure : 7);
        }
        code = wait_for(made, 7);
        handlers_lock = 0;
        if (in_child) rounds_left = before - 1;  // the child's own count went down, not ours
    }
    is_over = 1;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return code;
}

// Other threads allocate meanwhile, and rest now and then: the recorder's lock is handed to and fro.
static void* rest_and_malloc(void* unused) {
    (void)unused;
    const struct timespec rest = {0, 50000};
    while (!is_over) {
        for (int i = 0; i < 100; ++i) free(malloc(16 + i * 7));
        nanosleep(&rest, NULL);
    }
    return NULL;
}

static int among_threads(void) {
    pthread_t threads[2];
    is_over = 0;
    for (int i = 0; i < 2; ++i)
        if (pthread_create(&threads[i], NULL, i == 0 ? busy_malloc : rest_and_malloc, NULL) != 0) return 32;
    while (rounds_left > 0 && failure == 0) act_once();
    is_over = 1;
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    return 0;
}

// By the helper thread that a library's constructor waits for (waiting.c): the loader's lock is held.
void act_for_constructor(void) { act_once(); }

static int load_a_library_that_waits(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/waiting.so", getenv("HIWATER_TEST_LIBRARIES"));
    while (rounds_left > 0) {
        const int before = rounds_left;
        void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
        if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 40;
        dlclose(library);
        if (rounds_left == before) return 41;
    }
    return 0;
}

static void* act_when_cancelled(void* unused) {
    (void)unused;
    pthread_cancel(pthread_self());  // from here on the next cancellation point ends this thread
    act_once();
    failure = failure == 0 && acting == NULL ? 50 : failure;
    pthread_testcancel();
    failure = 51;
    return NULL;
}

static pthread_key_t end_key;
static void act_at_the_end(void* unused) {
    (void)unused;
    act_once();
}
static void* end_with_action(void* unused) {
    pthread_setspecific(end_key, &end_key);
    return unused;
}

static int in_threads(void* (*work)(void*), void* expected) {
    while (rounds_left > 0) {
        pthread_t thread;
        void* result = NULL;
        const int before = rounds_left;
        if (pthread_create(&thread, NULL, work, NULL) != 0) return 60;
        if (pthread_join(thread, &result) != 0 || result != expected) return 61;
        if (rounds_left != before - 1) return 62;  // cancelled in the midst of it
    }
    return 0;
}

static int in_forked_child(void) {
    while (rounds_left > 0) {
        const pid_t made = fork();
        if (made == 0) {
            act_once();
            _exit(failure != 0 ? failure : 7);
        }
        const int code = wait_for(made, 7);
        if (code != 0) return code;
        rounds_left = rounds_left - 1;
    }
    return 0;
}

static volatile int at_finish;
__attribute__((destructor)) static void finish(void) {
    if (!at_finish) return;
    rounds_left = at_finish;
    while (rounds_left > 0 && failure == 0) act_once();
    if (failure != 0) _exit(failure);
}

static int in_context(const char* context) {
    if (strcmp(context, "signal") == 0) return act_in_handler();
    if (strncmp(context, "fork_", 5) == 0) {
        in_prepare = strcmp(context, "fork_prepare") == 0;
        in_parent = strcmp(context, "fork_parent") == 0;
        in_child = strcmp(context, "fork_child") == 0;
        const int code = fork_often();
        in_prepare = in_parent = in_child = 0;
        return code;
    }
    if (strcmp(context, "among_threads") == 0) return among_threads();
    if (strcmp(context, "constructor") == 0) return load_a_library_that_waits();
    if (strcmp(context, "cancelled") == 0) return in_threads(act_when_cancelled, PTHREAD_CANCELED);
    if (strcmp(context, "thread_end") == 0) return in_threads(end_with_action, NULL);
    if (strcmp(context, "forked") == 0) return in_forked_child();
    if (strcmp(context, "finalisation") == 0) return at_finish = rounds_left, 0;
    if (strcmp(context, "exit") == 0) {  // past the interpreter, in the midst of a recording
        at_finish = rounds_left;
        exit(0);
    }
    while (rounds_left > 0 && failure == 0) act_once();
    return 0;
}

// Before anything is recorded, or after: libraries come at both times.
int begin(void) {
    if (pthread_key_create(&end_key, act_at_the_end) != 0) return 1;
    if (pthread_atfork(lock_foreign, unlock_foreign, unlock_foreign) != 0) return 2;
    return pthread_atfork(prepare, parent, child);
}

void allocate_by(void* (*one)(size_t), void (*other)(void*)) {
    allocate = one;
    give_back = other;
}

int run(const char* context, const char* action, int rounds) {
    static char path[4096];
    snprintf(path, sizeof path, "%s/constructor.so", getenv("HIWATER_TEST_LIBRARIES"));
    library_to_load = path;
    acting = action_of(action);
    if (acting == NULL) return 70;
    failure = 0;
    rounds_left = rounds;
    const int code = in_context(context);
    return code != 0 ? code : failure;
}

// What stays until the end, for the test to find to the byte.
void keep(void) {
    for (int i = 0; i < KEPT_BLOCKS; ++i) {
        char* volatile block = malloc(KEPT_BYTES);
        block[0] = 1;
    }
}
