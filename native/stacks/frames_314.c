/* Frames of CPython 3.14. */
#define Py_BUILD_CORE 1
#include "frames.h"

#include <Python.h>
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_interpframe.h>

#if PY_VERSION_HEX < 0x030e0000 || PY_VERSION_HEX >= 0x030f0000
#error "this file reads the frames of CPython 3.14"
#endif

#include "stackref_frames.h"

static inline int64_t full_collections(const PyInterpreterState* interpreter) {
    return (int64_t)interpreter->gc.generation_stats[NUM_GENERATIONS - 1].collections;
}

#include "walk.h"
