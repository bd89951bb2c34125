/* Frames of CPython 3.15. */
#include "stackref_frames.h"

#if PY_VERSION_HEX < 0x030f0000 || PY_VERSION_HEX >= 0x03100000
#error "this file reads the frames of CPython 3.15"
#endif

#include "walk.h"
