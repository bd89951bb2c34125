// A library whose constructor starts a thread and waits for it, as thread pools and loggers do.
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

static void* act(void* work) {
    ((void (*)(void))work)();
    return NULL;
}

__attribute__((constructor)) static void wait_at_load(void) {
    void* work = dlsym(RTLD_DEFAULT, "act_for_constructor");
    pthread_t thread;
    if (work != NULL && pthread_create(&thread, NULL, act, work) == 0) pthread_join(thread, NULL);
}
