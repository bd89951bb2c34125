/* Frames of CPython 3.11. */
#define Py_BUILD_CORE 1
#include "frames.h"

#include <Python.h>
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#if PY_VERSION_HEX < 0x030b0000 || PY_VERSION_HEX >= 0x030c0000
#error "this file reads the frames of CPython 3.11"
#endif

typedef struct _PyInterpreterFrame hw_frame;

/* No state. */
static const int g_none = 0;
static const void* const g_no_state = &g_none;

/* The state that holds the GIL. Only its own thread may read its fields, because it may be freed at any moment. */
static inline PyThreadState* attached_state(void) {
    return (PyThreadState*)_Py_atomic_load_relaxed(&_PyRuntime.gilstate.tstate_current);
}

static inline const hw_frame* top_of(const PyThreadState* state) {
    return state == NULL || state->cframe == NULL ? NULL : state->cframe->current_frame;
}

static inline int is_running(const void* state, const PyThreadState* copied) {
    (void)copied;
    return state == (const void*)attached_state();
}

static inline const hw_frame* attached_frame(void) { return top_of(attached_state()); }

/* Which memo saw a state attached last. Under the GIL. Two states at one place: the later one counts. */
enum { kSeen = 1024 };
static struct {
    const PyThreadState* state;
    hw_memo* memo;
} g_seen[kSeen];

/* Whether a state was ever attached to another thread than the one that made it. Then the GIL does not identify the
 * thread that holds it. */
static _Atomic int g_states_move;

/* From now on the state belongs to this thread alone. */
static __attribute__((noinline, cold)) void see_state(hw_memo* memo, PyThreadState* state) {
    if (state == NULL || state->cframe == NULL) return;
    const size_t place = ((uintptr_t)state >> 4) % kSeen;
    hw_memo* const before = g_seen[place].state == state ? g_seen[place].memo : NULL;
    if (before != NULL && before != memo && before->state == state) before->state = g_no_state;
    if (state->thread_id != memo->thread) g_states_move = 1;
    g_seen[place].state = state;
    g_seen[place].memo = memo;
    memo->state = state;
}

static inline void see_attached(hw_memo* memo) {
    PyThreadState* const state = attached_state();
    if (__builtin_expect((const void*)state != memo->state, 0)) see_state(memo, state);
}

/* The state of the thread that calls: the one that was seen attached to it, where that still is; else the one this
 * thread came from. */
static inline PyThreadState* state_of_origin(const PyThreadState* attached) {
    PyThreadState* const state = PyGILState_GetThisThreadState();
    return state == attached && g_states_move ? NULL
                                              : state; /* it may be attached to another thread, which runs its frames */
}

static inline const hw_frame* top_frame_if_attached(const hw_memo* memo) {
    PyThreadState* const state = attached_state();
    return (const void*)state == memo->state && (state->thread_id == memo->thread || g_states_move)
               ? state->cframe->current_frame
               : NULL;
}

static inline const hw_frame* top_frame(const hw_memo* memo) {
    PyThreadState* const state = attached_state();
    if ((const void*)state == memo->state && (state->thread_id == memo->thread || g_states_move))
        return state->cframe->current_frame;
    return top_of(state_of_origin(state));
}

/* The thread that holds the GIL is the current one, so an address is enough to identify its state. */
static inline const hw_frame* top_frame_with_gil(const hw_memo* memo) {
    PyThreadState* const state = attached_state();
    return __builtin_expect((const void*)state == memo->state, 1) ? state->cframe->current_frame : NULL;
}

/* A loop keeps a struct of its own there; outside any loop it is the state's. */
static inline const void* loop_anchor(const hw_memo* memo) {
    const PyThreadState* state = attached_state();
    if ((const void*)state != memo->state || (state->thread_id != memo->thread && !g_states_move))
        state = state_of_origin(state);
    return state == NULL || state->cframe == &state->root_cframe ? NULL : state->cframe;
}

static inline int may_tag(const hw_memo* memo) {
    return (const void*)attached_state() == memo->state && !g_states_move;
}

static inline const void* frame_instr(const hw_frame* f) { return f->prev_instr; }

static inline PyCodeObject* frame_code(const hw_frame* f) { return f->f_code; }

static inline const void* frame_first_local(const hw_frame* f) { return f->localsplus[0]; }

/* The interpreter stores the height of the evaluation stack where it calls Python code without another loop of its own
 * (Python/ceval.c, CALL_PY_EXACT_ARGS and similar instructions). */
static inline int64_t frame_height_at_call(const hw_frame* f, const hw_frame* above) {
    if (above->is_entry || above->owner != FRAME_OWNED_BY_THREAD || f->owner > FRAME_OWNED_BY_GENERATOR) return -1;
    return f->stacktop;
}

/* With what else is in these eight bytes, which does not change while C code is called. */
static inline int* frame_height(const hw_frame* f) {
    return f->owner > FRAME_OWNED_BY_GENERATOR ? NULL : (int*)&f->stacktop;
}

#include "walk.h"
