// Where line events come from: sys.monitoring's callbacks from Python 3.12 on, a trace function on 3.11. All of it
// needs the GIL.
#pragma once

#include <Python.h>

namespace hiwater::lines {

#if PY_VERSION_HEX >= 0x030c0000
// A new dict from the names of sys.monitoring's events to callbacks, or nullptr with an error set.
PyObject* monitoring_callbacks();
#else
// Our trace function in the calling thread; calls count. A tracer that was set before is still called, is what
// sys.gettrace() shows, and is set again at the end. Return -1 with an error set.
int attach_here();
void detach_here();
// In all threads there are; join() adds the calling thread to them.
int attach_all();
int join();
void detach_all();
// In how many threads another tracer has taken our place since.
long displaced();
#endif

}  // namespace hiwater::lines
