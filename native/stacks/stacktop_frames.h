/* What 3.12 and 3.13 have in common: frames keep their locals as pointers, and the height of their evaluation stack as
 * a number. */
#ifndef HIWATER_STACKTOP_FRAMES_H
#define HIWATER_STACKTOP_FRAMES_H

#include "attached_frames.h"

static inline const void* frame_first_local(const hw_frame* f) { return f->localsplus[0]; }

/* The interpreter stores the height of the evaluation stack where it calls Python code without another loop of its own
 * (Python/bytecodes.c, CALL_PY_EXACT_ARGS and similar instructions). It resumes generators in the same way, but they
 * take no operand. A frame without a function, the helper under an __init__, is made with its stack filled. */
static inline int64_t frame_height_at_call(const hw_frame* f, const hw_frame* above) {
    if (above->owner != FRAME_OWNED_BY_THREAD || f->owner > FRAME_OWNED_BY_GENERATOR || !PyFunction_Check(f->f_funcobj))
        return -1;
    return f->stacktop;
}

#endif
