// Thread states of the interpreter that move: to another thread of the system, and with a stack of their own (a fiber)
// from one thread to another and back. Called with the GIL.
#include <Python.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <ucontext.h>

// --- one state, two threads
// ---------------------------------------------------------------------------------------------------------

enum { KEPT_BYTES = 777 };
static PyThreadState* lent;
static PyObject* to_call;
static atomic_int is_running, is_over;

static void* call_under_lent_state(void* unused) {
    PyEval_RestoreThread(lent);
    PyObject* const result = PyObject_CallNoArgs(to_call);
    if (result == NULL) PyErr_Print();
    Py_XDECREF(result);
    lent = PyEval_SaveThread();
    is_over = 1;
    return result == NULL ? NULL : unused;
}

// By the called function: from here on the thread that lent its state allocates, too.
void tell_running(void) { is_running = 1; }

// Calls a function on another thread under this thread's state. This one keeps blocks of 777 bytes meanwhile; returns
// how many, or -1.
int call_elsewhere(PyObject* function) {
    pthread_t other;
    void* answer = NULL;
    int kept = 0;
    is_running = is_over = 0;
    to_call = function;
    lent = PyEval_SaveThread();
    if (pthread_create(&other, NULL, call_under_lent_state, &lent) != 0) return -1;
    while (!is_running && !is_over) sched_yield();
    for (; !is_over && kept < 2000000; ++kept) {
        char* volatile block = malloc(KEPT_BYTES);
        block[0] = 1;
        if (kept >= 1000) free(block);
    }
    pthread_join(other, &answer);
    PyEval_RestoreThread(lent);
    return answer == NULL ? -1 : kept;
}

// --- a fiber, on two threads
// --------------------------------------------------------------------------------------------------------

static ucontext_t fiber, outside;
static PyThreadState *fiber_state, *outside_state;
static int is_done;

static void run_fiber(void) {
    PyObject* const result = PyObject_CallNoArgs(to_call);
    if (result == NULL) PyErr_Print();
    Py_XDECREF(result);
    is_done = 1;
    outside_state = PyThreadState_Swap(outside_state);
    setcontext(&outside);
}

// The fiber's: whoever went on with it goes on.
void __attribute__((noinline)) leave_fiber(void) {
    PyThreadState_Swap(outside_state);
    swapcontext(&fiber, &outside);
}

static void __attribute__((noinline)) go_on_with_fiber(void) {
    outside_state = PyThreadState_Swap(fiber_state);
    swapcontext(&outside, &fiber);
}

static sem_t its_turn, my_turn;

static void* go_on_elsewhere(void* unused) {
    const PyGILState_STATE before = PyGILState_Ensure();
    for (PyThreadState* own = PyEval_SaveThread(); sem_wait(&its_turn), !is_done; own = PyEval_SaveThread()) {
        PyEval_RestoreThread(own);
        go_on_with_fiber();
        sem_post(&my_turn);
    }
    PyEval_RestoreThread(PyGILState_GetThisThreadState());
    PyGILState_Release(before);
    return unused;
}

// Calls a function in a fiber, whose turns this thread and another take one after the other. This one allocates nothing
// in between.
int call_in_fiber(PyObject* function) {
    enum { STACK_BYTES = 4 << 20 };
    static char stack[STACK_BYTES];
    pthread_t other;
    to_call = function;
    is_done = 0;
    fiber_state = PyThreadState_New(PyThreadState_Get()->interp);
    if (fiber_state == NULL || getcontext(&fiber) != 0 || sem_init(&its_turn, 0, 0) != 0 ||
        sem_init(&my_turn, 0, 0) != 0)
        return 1;
    fiber.uc_stack.ss_sp = stack;
    fiber.uc_stack.ss_size = sizeof stack;
    makecontext(&fiber, run_fiber, 0);
    if (pthread_create(&other, NULL, go_on_elsewhere, NULL) != 0) return 2;
    while (!is_done) {
        go_on_with_fiber();
        PyThreadState* const mine = PyEval_SaveThread();
        if (!is_done) sem_post(&its_turn), sem_wait(&my_turn);
        PyEval_RestoreThread(mine);
    }
    PyThreadState* const mine = PyEval_SaveThread();
    sem_post(&its_turn);
    pthread_join(other, NULL);
    PyEval_RestoreThread(mine);
    PyThreadState_Clear(fiber_state);
    PyThreadState_Delete(fiber_state);
    return 0;
}
