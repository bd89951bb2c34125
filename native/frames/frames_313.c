/* Frames of CPython 3.13. */
#define Py_BUILD_CORE 1
#include "frames.h"

#include <Python.h>
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>

#if PY_VERSION_HEX < 0x030d0000 || PY_VERSION_HEX >= 0x030e0000
#error "this file reads the frames of CPython 3.13"
#endif

typedef struct _PyInterpreterFrame hw_frame;

/* The state of the thread that calls: the attached one, and while the GIL is let go the one this thread came from. */
static inline PyThreadState* own_thread_state(void) {
    PyThreadState* state = PyThreadState_GetUnchecked();
    return state != NULL ? state : PyGILState_GetThisThreadState();
}

static inline const hw_frame* top_of(const PyThreadState* state) { return state == NULL ? NULL : state->current_frame; }

static inline const hw_frame* top_frame(hw_memo* memo) {
    (void)memo;
    return top_of(own_thread_state());
}

static inline const hw_frame* top_frame_with_gil(const hw_memo* memo) {
    (void)memo;
    return top_of(PyThreadState_GetUnchecked());
}

static inline const void* frame_instr(const hw_frame* f) { return f->instr_ptr; }

static inline PyCodeObject* frame_code(const hw_frame* f) {
    return f->owner == FRAME_OWNED_BY_CSTACK ? NULL : (PyCodeObject*)f->f_executable;
}

static inline const void* frame_first_local(const hw_frame* f) { return f->localsplus[0]; }

static inline int64_t full_collections(const PyInterpreterState* interpreter) {
    return (int64_t)interpreter->gc.generation_stats[NUM_GENERATIONS - 1].collections;
}

#include "walk.h"
