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

/* The state of the thread that calls: the attached one, and while the GIL is let go the one this thread came from, unless that is attached to
 * another thread meanwhile, which runs its frames. */
static inline PyThreadState* own_thread_state(void) {
    PyThreadState* state = PyThreadState_GetUnchecked();
    if (state != NULL) return state;
    state = PyGILState_GetThisThreadState();
    return state != NULL && !state->_status.active ? state : NULL;
}

static inline const hw_frame* top_of(const PyThreadState* state) { return state == NULL ? NULL : state->current_frame; }

static inline const hw_frame* top_frame(const hw_memo* memo) {
    (void)memo;
    return top_of(own_thread_state());
}

static inline const hw_frame* attached_frame(void) { return top_of(PyThreadState_GetUnchecked()); }

static inline const hw_frame* top_frame_with_gil(const hw_memo* memo) {
    (void)memo;
    return attached_frame();
}

static inline int may_mark(const hw_memo* memo) {
    (void)memo;
    return PyThreadState_GetUnchecked() != NULL;
}

static inline const void* frame_instr(const hw_frame* f) { return f->instr_ptr; }

static inline PyCodeObject* frame_code(const hw_frame* f) {
    return f->owner == FRAME_OWNED_BY_CSTACK ? NULL : (PyCodeObject*)f->f_executable;
}

static inline const void* frame_first_local(const hw_frame* f) { return f->localsplus[0]; }

/* The height of the evaluation stack, which is written down where the interpreter calls Python code and needs no other loop of its own
 * for that (Python/bytecodes.c, CALL_PY_EXACT_ARGS and its like). Generators are gone on with in that way, too, but take no operand;
 * and a frame of no function, the helper under an __init__, is made with its stack filled. */
static inline int64_t frame_height_at_call(const hw_frame* f, const hw_frame* above) {
    if (above->owner != FRAME_OWNED_BY_THREAD || f->owner > FRAME_OWNED_BY_GENERATOR || !PyFunction_Check(f->f_funcobj)) return -1;
    return f->stacktop;
}

static inline int64_t full_collections(const PyInterpreterState* interpreter) {
    return (int64_t)interpreter->gc.generation_stats[NUM_GENERATIONS - 1].collections;
}

#include "walk.h"
