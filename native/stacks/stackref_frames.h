/* What 3.14 and 3.15 have in common: frames keep their code and their locals as _PyStackRef, a pointer with tag bits.
 */
#ifndef HIWATER_STACKREF_FRAMES_H
#define HIWATER_STACKREF_FRAMES_H

#include "attached_frames.h"

#if defined(Py_STACKREF_DEBUG)
#error \
    "an interpreter built with Py_STACKREF_DEBUG keeps numbers in its frames, not pointers: build with -DHIWATER_ENGINE=OFF"
#endif

static inline const void* frame_instr(const hw_frame* f) { return f->instr_ptr; }

/* Frames whose owner is "interpreter" or a later value are entries from C and the sentinel below all others: they run
 * None. A compiler that plugs into the interpreter may store an object of its own instead of the code object
 * (PyUnstable_ExecutableKinds): no name for it. */
static inline PyCodeObject* frame_code(const hw_frame* f) {
    if (f->owner >= FRAME_OWNED_BY_INTERPRETER) return NULL;
    PyObject* executable = PyStackRef_AsPyObjectBorrow(f->f_executable);
    return executable != NULL && PyCode_Check(executable) ? (PyCodeObject*)executable : NULL;
}

static inline const void* frame_first_local(const hw_frame* f) { return PyStackRef_AsPyObjectBorrow(f->localsplus[0]); }

/* The interpreter stores the height of the evaluation stack where it calls Python code without another loop of its own
 * (Python/bytecodes.c, _PUSH_FRAME). It resumes generators in the same way, but they take no operand. A frame without a
 * function, the helper under an __init__, is made with its stack filled. While a frame runs, its stored height is not
 * updated. So the frame above must have run: otherwise a signal in the middle of a call would look like a call that was
 * made. Machine code from the interpreter's compiler may keep operands in registers. */
static inline int64_t frame_height_at_call(const hw_frame* f, const hw_frame* above) {
    if (above->owner != FRAME_OWNED_BY_THREAD || f->owner > FRAME_OWNED_BY_GENERATOR) return -1;
    const PyCodeObject* called = frame_code(above);
    if (frame_code(f) == NULL || called == NULL || above->instr_ptr == _PyCode_CODE((PyCodeObject*)called)) return -1;
    if (!PyFunction_Check(PyStackRef_AsPyObjectBorrow(f->f_funcobj)) || own_thread_state()->interp->jit) return -1;
    return f->stackpointer - f->localsplus;
}

/* A pointer here, which is also stored around many calls of C code. */
static inline int* frame_height(const hw_frame* f) {
    (void)f;
    return NULL;
}

#endif
