// Threads that Python does not know of, which do one thing at a time as they are told.
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum Action { kAllocate, kRenameByPrctl, kRenameByPthread, kEnd };

struct Worker {
    pthread_t thread;
    sem_t go, done;
    enum Action action;
    size_t size;
    const char* name;
    int error;
};
static struct Worker workers[64];

static void* work(void* argument) {
    struct Worker* me = argument;
    for (;;) {
        sem_wait(&me->go);
        if (me->action == kEnd) return NULL;
        if (me->action == kAllocate) {
            void* volatile block = malloc(me->size);  // kept for good: the test counts it
            memset(block, 1, me->size);
        } else if (me->action == kRenameByPrctl) {
            me->error = prctl(PR_SET_NAME, me->name, 0, 0, 0);
        } else {
            me->error = pthread_setname_np(pthread_self(), me->name);
        }
        sem_post(&me->done);
    }
}

// `name`: given by this thread at once, whether the new one runs already or not; may be null.
int start_worker(size_t number, const char* name) {
    struct Worker* worker = &workers[number];
    memset(worker, 0, sizeof *worker);
    sem_init(&worker->go, 0, 0);
    sem_init(&worker->done, 0, 0);
    if (pthread_create(&worker->thread, NULL, work, worker) != 0) return -1;
    return name == NULL ? 0 : pthread_setname_np(worker->thread, name);
}

static int have_done(size_t number, enum Action action) {
    struct Worker* worker = &workers[number];
    worker->action = action;
    sem_post(&worker->go);
    sem_wait(&worker->done);
    return worker->error;
}

int worker_allocates(size_t number, size_t size) {
    workers[number].size = size;
    return have_done(number, kAllocate);
}

int worker_renames_itself(size_t number, const char* name, size_t by_prctl) {
    workers[number].name = name;
    return have_done(number, by_prctl ? kRenameByPrctl : kRenameByPthread);
}

int rename_worker(size_t number, const char* name) { return pthread_setname_np(workers[number].thread, name); }

int end_worker(size_t number) {
    workers[number].action = kEnd;
    sem_post(&workers[number].go);
    return pthread_join(workers[number].thread, NULL);
}

// Allocates as fast as it can, until it is told to end.
static volatile int is_to_end;
static pthread_t hasty;

static void* hasten(void* unused) {
    (void)unused;
    for (size_t count = 0; !is_to_end; ++count) {
        char* volatile block = malloc(count % 64 == 0 ? 1 << 20 : 1 << 16);
        block[0] = 1;
        free(block);
    }
    return NULL;
}

int start_hasty_worker(void) { return pthread_create(&hasty, NULL, hasten, NULL); }

int end_hasty_worker(void) {
    is_to_end = 1;
    return pthread_join(hasty, NULL);
}

int rename_thread(size_t id, const char* name) { return pthread_setname_np((pthread_t)id, name); }
int rename_me(const char* name) { return prctl(PR_SET_NAME, name, 0, 0, 0); }

// In a child that uses this process's memory.
int rename_in_vfork(const char* name) {
    const pid_t child = vfork();
    if (child == 0) _exit(prctl(PR_SET_NAME, name, 0, 0, 0) == 0 ? 7 : 1);
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7 ? 0 : -1;
}
