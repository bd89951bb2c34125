#include "stacks/recursion.h"

namespace hiwater::recursion {

namespace {

// What is left to a thread before the interpreter refuses to go deeper. sys.setrecursionlimit() keeps the depth, which
// is the limit less what is left, so a thread that was given some back keeps it under any limit.
//   3.11        one count, of frames of Python and of calls in C
//   3.12, 3.13  one of frames, and one of calls in C, whose limit nobody can set
//   from 3.14   one of frames; calls in C are limited by the bytes of the stack
#if PY_VERSION_HEX < 0x030C0000
int& frames_left(PyThreadState* state) noexcept { return state->recursion_remaining; }
int frames_limit(PyThreadState* state) noexcept { return state->recursion_limit; }
#else
int& frames_left(PyThreadState* state) noexcept { return state->py_recursion_remaining; }
int frames_limit(PyThreadState* state) noexcept { return state->py_recursion_limit; }
#endif

#if PY_VERSION_HEX < 0x030C0000
int& calls_left(PyThreadState* state) noexcept { return state->recursion_remaining; }
#elif PY_VERSION_HEX < 0x030E0000
int& calls_left(PyThreadState* state) noexcept { return state->c_recursion_remaining; }
#if PY_VERSION_HEX < 0x030D0000
constexpr int kCallsLimit = C_RECURSION_LIMIT;
#else
constexpr int kCallsLimit = Py_C_RECURSION_LIMIT;
#endif
#endif

}  // namespace

PyObject* call_at_the_bottom(PyObject* callable, PyObject* arguments) noexcept {
    PyThreadState* const state = PyThreadState_Get();
    const int frames = frames_limit(state) - frames_left(state);
    frames_left(state) += frames;
#if PY_VERSION_HEX < 0x030E0000
    // A built-in function is itself a call in C, which the interpreter does not make when it begins a program.
    int calls = PyCFunction_Check(callable) ? 1 : 0;
#if PY_VERSION_HEX >= 0x030C0000
    calls += kCallsLimit - calls_left(state);
#endif
    calls_left(state) += calls;
#endif
    PyObject* const result = PyObject_Call(callable, arguments, nullptr);
#if PY_VERSION_HEX < 0x030E0000
    calls_left(state) -= calls;
#endif
    frames_left(state) -= frames;
    return result;
}

int frames_left() noexcept { return frames_left(PyThreadState_Get()); }

}  // namespace hiwater::recursion
