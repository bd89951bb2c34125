// A native thread that loads and unloads a library again and again: `begin(path)`, and `end()`, which returns how often
// it did, or -1.
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>

static pthread_t thread;
static atomic_int is_over, rounds;
static const char* library;

// The loader's lock is not fair: a thread that took it again at once would keep others from it for seconds.
static void rest(void) {
    const struct timespec time = {0, 200 * 1000};
    nanosleep(&time, NULL);
}

static void* reload(void* unused) {
    while (!is_over) {
        void* loaded = dlopen(library, RTLD_NOW);
        if (loaded == NULL) return &rounds;
        rest();
        if (dlclose(loaded) != 0) return &rounds;
        ++rounds;
        rest();
    }
    return unused;
}

int begin(const char* path) {
    library = path;
    is_over = rounds = 0;
    return pthread_create(&thread, NULL, reload, NULL);
}

int end(void) {
    void* failed = NULL;
    is_over = 1;
    return pthread_join(thread, &failed) != 0 || failed != NULL ? -1 : rounds;
}
