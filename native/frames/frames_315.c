/* Frames of CPython 3.15. */
#define Py_BUILD_CORE 1
#include "frames.h"

#include <Python.h>
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interpframe.h>

#if PY_VERSION_HEX < 0x030f0000 || PY_VERSION_HEX >= 0x03100000
#error "this file reads the frames of CPython 3.15"
#endif

#include "stackref_frames.h"
#include "walk.h"
