/* Frames of CPython 3.13. */
#include "stacktop_frames.h"

#if PY_VERSION_HEX < 0x030d0000 || PY_VERSION_HEX >= 0x030e0000
#error "this file reads the frames of CPython 3.13"
#endif

static inline const void* frame_instr(const hw_frame* f) { return f->instr_ptr; }

static inline PyCodeObject* frame_code(const hw_frame* f) {
    return f->owner == FRAME_OWNED_BY_CSTACK ? NULL : (PyCodeObject*)f->f_executable;
}

#include "walk.h"
