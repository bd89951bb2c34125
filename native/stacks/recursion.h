// The depth of recursion that the interpreter counts for a thread.
#pragma once

#include <Python.h>

namespace hiwater::recursion {

// Calls `callable` as if the thread had no frame yet: what lies below does not count against the limits of recursion.
// The limits themselves, which the program reads and sets, stay as they are. A new reference, or null with an
// exception.
PyObject* call_at_the_bottom(PyObject* callable, PyObject* arguments) noexcept;

// How many more frames the calling thread, which has the GIL, may make.
int frames_left() noexcept;

}  // namespace hiwater::recursion
