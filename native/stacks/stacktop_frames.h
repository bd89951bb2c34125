/* What 3.12 and 3.13 have in common: frames keep their locals as pointers, and the height of their evaluation stack as
 * a number. */
#ifndef HIWATER_STACKTOP_FRAMES_H
#define HIWATER_STACKTOP_FRAMES_H

#include "attached_frames.h"

#include <opcode.h>

static inline const void* frame_first_local(const hw_frame* f) { return f->localsplus[0]; }

/* Whether a frame that has resumed a generator has given it an operand. FOR_ITER gives none. */
static inline int has_sent(const hw_frame* f) {
#if PY_VERSION_HEX < 0x030d0000
    const int opcode = _Py_OPCODE(f->prev_instr[-INLINE_CACHE_ENTRIES_SEND]);
#else
    const int opcode = _Py_OPCODE(*f->instr_ptr);
#endif
    return opcode == SEND || opcode == SEND_GEN;
}

/* The interpreter stores the height of the evaluation stack where it calls Python code without another loop of its own
 * (Python/bytecodes.c, CALL_PY_EXACT_ARGS and similar instructions), or resumes a generator. A frame without a
 * function, the helper under an __init__, is made with its stack filled. */
static inline int64_t frame_height_at_call(const hw_frame* f, const hw_frame* above) {
    if (f->owner > FRAME_OWNED_BY_GENERATOR || !PyFunction_Check(f->f_funcobj)) return -1;
    const int took_operand = above->owner == FRAME_OWNED_BY_THREAD ||
                             (above->owner == FRAME_OWNED_BY_GENERATOR && f->stacktop >= 0 && has_sent(f));
    return took_operand ? f->stacktop : -1;
}

/* With what else is in these eight bytes, which does not change while C code is called. */
static inline int* frame_height(const hw_frame* f) {
    return f->owner > FRAME_OWNED_BY_GENERATOR ? NULL : (int*)&f->stacktop;
}

#endif
