#include "lines/line_events.h"

#include <new>
#include <unordered_map>

#include "stacks/frames.h"
#include "accounting/thread_heap.h"
#include "session/recorder.h"
#include "lines/line_recorder.h"
#include "base/uncopied.h"

namespace hiwater::lines {

#if PY_VERSION_HEX >= 0x030c0000

namespace {

// The interpreter makes an int for a callback and gives it back after it. It is no memory of the program's: while a
// callback runs the thread's figures are as if it was not there.
#if PY_VERSION_HEX >= 0x030e0000
// From 3.14 on it takes that int from its own list of free ones, and puts it back there: nothing is allocated.
struct WithoutInt {
    explicit WithoutInt(PyObject*) noexcept {}
    ~WithoutInt() {}  // a variable of it is not unused
};
using WithoutOffset = WithoutInt;
using WithoutLine = WithoutInt;
#else
template <auto kMakesInt>
class WithoutInt : Uncopied {
public:
    explicit WithoutInt(PyObject* number) noexcept : bytes_(recording() && !is_immortal(number) ? int_bytes() : 0) {
        ThreadHeap& heap = thread_heap;
        heap.allocated_bytes -= bytes_;
        if (heap.peak_bytes == heap.live_bytes) heap.peak_bytes -= bytes_;
        heap.live_bytes -= bytes_;
    }
    ~WithoutInt() { thread_heap.live_bytes += bytes_; }

private:
    // How much the interpreter's function allocates differs between versions, so it is measured.
    static std::int64_t int_bytes() noexcept {
        static const std::int64_t bytes = [] {
            const std::int64_t before = thread_heap.allocated_bytes;
            Py_XDECREF(kMakesInt(1000));
            const std::int64_t asked = thread_heap.allocated_bytes - before;
            thread_heap.allocated_bytes = before;
            return asked;
        }();
        return bytes;
    }
    static bool is_immortal(PyObject* number) noexcept {
        const long value = PyLong_AsLong(number);
        return value >= -5 && value <= 256;  // made once, for all
    }
    const std::int64_t bytes_;
};

using WithoutOffset = WithoutInt<PyLong_FromSsize_t>;
#if PY_VERSION_HEX >= 0x030d0000
using WithoutLine = WithoutInt<PyLong_FromLong>;
#else
using WithoutLine = WithoutOffset;
#endif
#endif

PyObject* line_event(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count >= 2) {
        const void* frame = hw_current_frame();
        const auto line = static_cast<std::int32_t>(PyLong_AsLong(arguments[1]));
        if (!tell({What::line, frame, arguments[0], line})) return nullptr;
        WithoutLine without(arguments[1]);
        on_line(frame, arguments[0], line);
    }
    Py_RETURN_NONE;
}

PyObject* resume_event(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count >= 2 && is_watched(arguments[0])) {
        const void* frame = hw_current_frame();
        auto* code = reinterpret_cast<PyCodeObject*>(arguments[0]);
        const int line = PyCode_Addr2Line(code, static_cast<int>(PyLong_AsLong(arguments[1])));
        if (!tell({What::resume, frame, code, line})) return nullptr;
        WithoutOffset without(arguments[1]);
        on_resume(frame, code, line);
    }
    Py_RETURN_NONE;
}

template <bool kSuspends>
PyObject* exit_event(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count >= 2 && is_watched(arguments[0])) {
        const void* frame = hw_current_frame();
        if (!tell({kSuspends ? What::suspend : What::exit, frame, arguments[0], 0})) return nullptr;
        WithoutOffset without(arguments[1]);
        on_exit(frame, kSuspends);
    }
    Py_RETURN_NONE;
}

template <auto kCallback>
PyMethodDef method(const char* name) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(kCallback)), METH_FASTCALL, nullptr};
}

PyMethodDef g_callbacks[] = {
    method<line_event>("LINE"),           method<resume_event>("PY_RESUME"),
    method<resume_event>("PY_THROW"),     method<exit_event<false>>("PY_RETURN"),
    method<exit_event<true>>("PY_YIELD"), method<exit_event<false>>("PY_UNWIND"),
};

}  // namespace

PyObject* monitoring_callbacks() {
    PyObject* all = PyDict_New();
    if (all == nullptr) return nullptr;
    for (PyMethodDef& callback : g_callbacks) {
        PyObject* function = PyCFunction_New(&callback, nullptr);
        if (function == nullptr || PyDict_SetItemString(all, callback.ml_name, function) < 0) {
            Py_XDECREF(function);
            Py_DECREF(all);
            return nullptr;
        }
        Py_DECREF(function);
    }
    return all;
}

#else

namespace {

// A thread that we trace, by its state's id.
struct Attached {
    long count = 0;               // of attach_here() calls
    bool by_all = false;          // through attach_all() or join()
    Py_tracefunc func = nullptr;  // the tracer found there
    PyObject* object = nullptr;   // its own; a strong reference while we stand in
};

std::unordered_map<std::uint64_t, Attached>& attached() {
    static auto* const all = new std::unordered_map<std::uint64_t, Attached>;
    return *all;
}
long g_foreign = 0;  // how many of them had a tracer
long g_displaced = 0;

std::int32_t line_of(PyFrameObject* frame) { return static_cast<std::int32_t>(PyFrame_GetLineNumber(frame)); }

// False when a meter or a listener interrupts the program.
bool watched_event(PyFrameObject* frame, PyCodeObject* code, int what, PyObject* argument) {
    if (what == PyTrace_LINE) {
        const std::int32_t line = line_of(frame);
        if (!tell({What::line, frame, code, line})) return false;
        on_line(frame, code, line);
    } else if (what == PyTrace_CALL) {
        const int first = code->_co_firsttraceable * static_cast<int>(sizeof(_Py_CODEUNIT));
        if (PyFrame_GetLasti(frame) <= first) return true;
        const std::int32_t line = line_of(frame);
        if (!tell({What::resume, frame, code, line})) return false;
        on_resume(frame, code, line);
    } else if (what == PyTrace_RETURN) {
        const bool suspends =
            (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0 && argument != nullptr;
        if (!tell({suspends ? What::suspend : What::exit, frame, code, 0})) return false;
        on_exit(frame, suspends);
    }
    return true;
}

int trace(PyObject*, PyFrameObject* frame, int what, PyObject* argument) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    Py_DECREF(code);  // the frame has it
    if (is_watched(code) && !watched_event(frame, code, what, argument)) return -1;
    if (g_foreign == 0) return 0;
    const auto found = attached().find(PyThreadState_Get()->id);
    if (found == attached().end() || found->second.func == nullptr) return 0;
    return found->second.func(found->second.object, frame, what, argument);
}

int stand_in(PyThreadState* thread, Attached& state) {
    if (thread->c_tracefunc == trace) return 0;
    // Another tracer may have replaced ours: the present one is called from now on.
    if (state.func != nullptr) --g_foreign;
    Py_XDECREF(state.object);
    state.func = thread->c_tracefunc;
    state.object = Py_XNewRef(thread->c_traceobj);
    if (state.func != nullptr) ++g_foreign;
    return _PyEval_SetTrace(thread, trace, state.object);
}

void leave(PyThreadState* thread) {
    const auto found = attached().find(thread->id);
    if (found == attached().end() || found->second.count > 0 || found->second.by_all) return;
    const Attached state = found->second;
    attached().erase(found);
    if (state.func != nullptr) --g_foreign;
    if (thread->c_tracefunc != trace) {
        ++g_displaced;  // whoever did it stays
    } else if (_PyEval_SetTrace(thread, state.func, state.object) < 0) {
        PyErr_Clear();  // an audit hook refused: our function is still called, and finds nothing watched
    }
    Py_XDECREF(state.object);
}

template <typename Change>
int change(PyThreadState* thread, Change&& make) {
    try {
        Attached& state = attached()[thread->id];
        make(state);
        if (stand_in(thread, state) == 0) return 0;
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    }
    return -1;
}

template <typename Do>
void for_each_thread(Do&& act) {
    PyThreadState* thread = PyInterpreterState_ThreadHead(PyThreadState_Get()->interp);
    for (; thread != nullptr; thread = PyThreadState_Next(thread)) act(thread);
}

}  // namespace

int attach_here() {
    return change(PyThreadState_Get(), [](Attached& state) { ++state.count; });
}

void detach_here() {
    PyThreadState* thread = PyThreadState_Get();
    const auto found = attached().find(thread->id);
    if (found == attached().end() || found->second.count == 0) return;
    --found->second.count;
    leave(thread);
}

int join() {
    return change(PyThreadState_Get(), [](Attached& state) { state.by_all = true; });
}

int attach_all() {
    int worst = 0;
    for_each_thread([&](PyThreadState* thread) {
        if (worst == 0) worst = change(thread, [](Attached& state) { state.by_all = true; });
    });
    return worst;
}

void detach_all() {
    for (auto& [id, state] : attached()) state.by_all = false;
    for_each_thread(leave);
    // What is left and counts nothing belonged to threads that have ended.
    for (auto at = attached().begin(); at != attached().end();) {
        const Attached state = at->second;
        if (state.count > 0) {
            ++at;
            continue;
        }
        at = attached().erase(at);
        if (state.func != nullptr) --g_foreign;
        Py_XDECREF(state.object);
    }
}

long displaced() { return g_displaced; }

#endif

}  // namespace hiwater::lines
