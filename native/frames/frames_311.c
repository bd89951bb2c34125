/* Frames of CPython 3.11. */
#define Py_BUILD_CORE 1
#include "frames.h"

#include <Python.h>
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#include <pthread.h>

#if PY_VERSION_HEX < 0x030b0000 || PY_VERSION_HEX >= 0x030c0000
#error "this file reads the frames of CPython 3.11"
#endif

typedef struct _PyInterpreterFrame hw_frame;

/* The state of the thread that calls. `tstate_current` is whoever holds the GIL, so it is asked whether that is us. */
static inline PyThreadState* own_thread_state(hw_memo* memo) {
    if (memo->thread == 0) memo->thread = (unsigned long)pthread_self();
    PyThreadState* state = (PyThreadState*)_Py_atomic_load_relaxed(&_PyRuntime.gilstate.tstate_current);
    if (state == NULL || state->thread_id != memo->thread) state = PyGILState_GetThisThreadState();
    if (state != NULL && state->cframe != NULL) memo->state = state;
    return state;
}

static inline const hw_frame* top_of(const PyThreadState* state) {
    return state == NULL || state->cframe == NULL ? NULL : state->cframe->current_frame;
}

static inline const hw_frame* top_frame(hw_memo* memo) { return top_of(own_thread_state(memo)); }

/* Whoever holds the GIL is the current one, so an address is enough to know its state by. */
static inline const hw_frame* top_frame_with_gil(const hw_memo* memo) {
    const PyThreadState* state = (const PyThreadState*)_Py_atomic_load_relaxed(&_PyRuntime.gilstate.tstate_current);
    return (const void*)state == memo->state ? state->cframe->current_frame : NULL;
}

static inline const void* frame_instr(const hw_frame* f) { return f->prev_instr; }

static inline PyCodeObject* frame_code(const hw_frame* f) { return f->f_code; }

static inline const void* frame_first_local(const hw_frame* f) { return f->localsplus[0]; }

/* The height of the evaluation stack, which is written down where the interpreter calls Python code and needs no other loop of its own
 * for that (Python/ceval.c, CALL_PY_EXACT_ARGS and its like). */
static inline int64_t frame_height_at_call(const hw_frame* f, const hw_frame* above) {
    if (above->is_entry || above->owner != FRAME_OWNED_BY_THREAD || f->owner > FRAME_OWNED_BY_GENERATOR) return -1;
    return f->stacktop;
}

static inline int64_t full_collections(const PyInterpreterState* interpreter) {
    return (int64_t)interpreter->gc.generation_stats[NUM_GENERATIONS - 1].collections;
}

#include "walk.h"
