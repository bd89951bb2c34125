/* Frames of CPython 3.15. */
#define Py_BUILD_CORE 1
#include "frames.h"

#include <Python.h>
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_interpframe.h>

#if PY_VERSION_HEX < 0x030f0000 || PY_VERSION_HEX >= 0x03100000
#error "this file reads the frames of CPython 3.15"
#endif

#include "stackref_frames.h"

/* The last few collections of each generation are kept; each counts all before it. */
static inline int64_t full_collections(const PyInterpreterState* interpreter) {
    const struct gc_stats* stats = interpreter->gc.generation_stats;
    return stats == NULL ? -1 : (int64_t)stats->old[1].items[stats->old[1].index].collections;
}

#include "walk.h"
