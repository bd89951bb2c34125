/* Frames of CPython 3.12. */
#include "stacktop_frames.h"

#if PY_VERSION_HEX < 0x030c0000 || PY_VERSION_HEX >= 0x030d0000
#error "this file reads the frames of CPython 3.12"
#endif

static inline const void* frame_instr(const hw_frame* f) { return f->prev_instr; }

static inline PyCodeObject* frame_code(const hw_frame* f) {
    return f->owner == FRAME_OWNED_BY_CSTACK ? NULL : f->f_code;
}

#include "walk.h"
