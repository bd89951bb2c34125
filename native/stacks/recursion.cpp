#include "stacks/recursion.h"

#include <sys/mman.h>

#include "base/raw_calls.h"
#include "base/uncopied.h"

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

// A first chunk for the frames of a thread that has none yet. Where chunks end decides how much a program costs: before
// CPython mended gh-142183 in 2026, a call in a loop right there maps and unmaps a chunk each time. Our frames must not
// move these places. The interpreter may free the chunk: it is mapped like one of the interpreter's own.
class FirstChunk : Uncopied {
public:
    explicit FirstChunk(PyThreadState* state) noexcept
        : state_(state), chunk_(state->datastack_chunk), top_(state->datastack_top), limit_(state->datastack_limit) {
        void* const pages = raw::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) return;
        chunk_->top = static_cast<std::size_t>(top_ - &chunk_->data[0]);
        ours_ = static_cast<_PyStackChunk*>(pages);
        *ours_ = {chunk_, kBytes, 0, {}};
        state->datastack_chunk = ours_;
        state->datastack_top = &ours_->data[1];  // as of the first one: without a frame at its beginning, it stays
        state->datastack_limit = reinterpret_cast<PyObject**>(static_cast<char*>(pages) + kBytes);
    }
    ~FirstChunk() {
        if (ours_ == nullptr || state_->datastack_chunk != ours_) return;
        state_->datastack_chunk = chunk_;
        state_->datastack_top = top_;
        state_->datastack_limit = limit_;
        raw::munmap(ours_, kBytes);
    }

private:
    static constexpr std::size_t kBytes = 16 << 10;  // DATA_STACK_CHUNK_SIZE of CPython's pystate.c

    PyThreadState* const state_;
    _PyStackChunk* const chunk_;
    PyObject **const top_, **const limit_;
    _PyStackChunk* ours_ = nullptr;
};

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
    const FirstChunk of_the_program(state);
    PyObject* const result = PyObject_Call(callable, arguments, nullptr);
#if PY_VERSION_HEX < 0x030E0000
    calls_left(state) -= calls;
#endif
    frames_left(state) -= frames;
    return result;
}

int frames_left() noexcept { return frames_left(PyThreadState_Get()); }

}  // namespace hiwater::recursion
