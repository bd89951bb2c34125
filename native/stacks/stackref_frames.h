/* What 3.14 and 3.15 have in common: frames keep their code and their locals as _PyStackRef, a pointer with tag bits. */
#ifndef HIWATER_STACKREF_FRAMES_H
#define HIWATER_STACKREF_FRAMES_H

#if defined(Py_STACKREF_DEBUG)
#error "an interpreter built with Py_STACKREF_DEBUG keeps numbers in its frames, not pointers: build with -DHIWATER_ENGINE=OFF"
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

/* Frames of owners from "interpreter" on are entries from C and the sentinel below all others: they run None. A compiler that
 * plugs into the interpreter may put an object of its own where the code object is (PyUnstable_ExecutableKinds): not ours to name. */
static inline PyCodeObject* frame_code(const hw_frame* f) {
    if (f->owner >= FRAME_OWNED_BY_INTERPRETER) return NULL;
    PyObject* executable = PyStackRef_AsPyObjectBorrow(f->f_executable);
    return executable != NULL && PyCode_Check(executable) ? (PyCodeObject*)executable : NULL;
}

static inline const void* frame_first_local(const hw_frame* f) { return PyStackRef_AsPyObjectBorrow(f->localsplus[0]); }

/* The height of the evaluation stack, which is written down where the interpreter calls Python code and needs no other loop of its own
 * for that (Python/bytecodes.c, _PUSH_FRAME). Generators are gone on with in that way, too, but take no operand; and a frame of no
 * function, the helper under an __init__, is made with its stack filled. Of a frame that runs the height is not kept up to date; so that a
 * signal in the midst of a call is not taken for one that was made, the frame above must have run. Machine code that the interpreter
 * makes may keep operands in registers. */
static inline int64_t frame_height_at_call(const hw_frame* f, const hw_frame* above) {
    if (above->owner != FRAME_OWNED_BY_THREAD || f->owner > FRAME_OWNED_BY_GENERATOR) return -1;
    const PyCodeObject* called = frame_code(above);
    if (frame_code(f) == NULL || called == NULL || above->instr_ptr == _PyCode_CODE((PyCodeObject*)called)) return -1;
    if (!PyFunction_Check(PyStackRef_AsPyObjectBorrow(f->f_funcobj)) || own_thread_state()->interp->jit) return -1;
    return f->stackpointer - f->localsplus;
}

#endif
