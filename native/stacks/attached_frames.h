/* What 3.12 and later versions have in common: which frames the calling thread runs, and what the walk includes of the
 * interpreter. */
#ifndef HIWATER_ATTACHED_FRAMES_H
#define HIWATER_ATTACHED_FRAMES_H

#define Py_BUILD_CORE 1
#include "frames.h"

#include <Python.h>
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe.h>
#endif

typedef struct _PyInterpreterFrame hw_frame;

#if PY_VERSION_HEX < 0x030e0000
#define HW_OWNED_BY_LOOP FRAME_OWNED_BY_CSTACK
#else
#define HW_OWNED_BY_LOOP FRAME_OWNED_BY_INTERPRETER
#endif

static inline PyThreadState* attached_state(void) {
#if PY_VERSION_HEX < 0x030d0000
    return _PyThreadState_UncheckedGet();
#else
    return PyThreadState_GetUnchecked();
#endif
}

static inline const hw_frame* top_of(const PyThreadState* state) {
#if PY_VERSION_HEX < 0x030d0000
    return state == NULL || state->cframe == NULL ? NULL : state->cframe->current_frame;
#else
    return state == NULL ? NULL : state->current_frame;
#endif
}

/* The state of the calling thread: the attached one; while the GIL is released, the one this thread came from, unless
 * another thread has attached it in the meantime and runs its frames. */
static inline PyThreadState* own_thread_state(void) {
    PyThreadState* state = attached_state();
    if (state != NULL) return state;
    state = PyGILState_GetThisThreadState();
    return state != NULL && !state->_status.active ? state : NULL;
}

static inline int is_running(const void* state, const PyThreadState* copied) {
    (void)state;
    return copied->_status.active;
}

static inline const hw_frame* attached_frame(void) { return top_of(attached_state()); }

static inline const hw_frame* top_frame(const hw_memo* memo) {
    (void)memo;
    return top_of(own_thread_state());
}

static inline const hw_frame* top_frame_if_attached(const hw_memo* memo) {
    (void)memo;
    return attached_frame();
}

static inline void see_attached(hw_memo* memo) { (void)memo; }

static inline const hw_frame* top_frame_with_gil(const hw_memo* memo) {
    (void)memo;
    return attached_frame();
}

/* Before 3.13 a loop keeps a struct of its own there; outside any loop it is the state's. Later ones keep the frame
 * that the frames of the loop lead to. */
static inline const void* loop_anchor(const hw_memo* memo) {
    (void)memo;
    const PyThreadState* const state = own_thread_state();
    if (state == NULL) return NULL;
#if PY_VERSION_HEX < 0x030d0000
    return state->cframe == &state->root_cframe ? NULL : state->cframe;
#else
    const hw_frame* f = top_of(state);
    while (f != NULL && f->owner < HW_OWNED_BY_LOOP) f = f->previous;
    return f;
#endif
}

static inline int may_tag(const hw_memo* memo) {
    (void)memo;
    return attached_state() != NULL;
}

#endif
