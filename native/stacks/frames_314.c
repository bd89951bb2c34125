/* Frames of CPython 3.14. */
#include "stackref_frames.h"

#if PY_VERSION_HEX < 0x030e0000 || PY_VERSION_HEX >= 0x030f0000
#error "this file reads the frames of CPython 3.14"
#endif

#include "walk.h"
