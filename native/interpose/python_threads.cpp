#include <Python.h>

#include "interpose/python_threads.h"

#include <cctype>
#include <cstring>

#include "session/recorder.h"
#include "base/uncopied.h"

namespace hiwater::interpose {

namespace {

// The program's own exception, if it has one, is left as it was.
class ErrorKept : Uncopied {
public:
    ErrorKept() noexcept { PyErr_Fetch(&type_, &value_, &traceback_); }
    ~ErrorKept() { PyErr_Restore(type_, value_, traceback_); }

private:
    PyObject *type_, *value_, *traceback_;
};

bool is_numbered(const char* name, const char* prefix) noexcept {
    const std::size_t length = std::strlen(prefix);
    return std::strncmp(name, prefix, length) == 0 && std::isdigit(static_cast<unsigned char>(name[length])) != 0;
}

// Whether threading made it up: "Thread-1", "Thread-1 (function)".
bool is_default(const char* name) noexcept {
    if (std::strcmp(name, "MainThread") == 0) return true;
    if (!is_numbered(name, "Thread-")) return false;
    const char* rest = name + std::strlen("Thread-");
    while (std::isdigit(static_cast<unsigned char>(*rest)) != 0) ++rest;
    return *rest == '\0' || std::strncmp(rest, " (", 2) == 0;
}

struct PythonThread {
    ThreadId id = 0;  // 0: not started
    ThreadName name{};

    explicit PythonThread(PyObject* thread) noexcept {
        PyObject* const text = PyObject_GetAttrString(thread, "_name");
        PyObject* const ident = PyObject_GetAttrString(thread, "_ident");
        const char* const utf8 = text != nullptr && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr;
        // A thread that Python did not make, and that called threading.current_thread(): the system's name may mean
        // more.
        if (utf8 != nullptr && !is_numbered(utf8, "Dummy-"))
            name.take(utf8, is_default(utf8) ? NameOf::python_default : NameOf::python);
        if (ident != nullptr && PyLong_Check(ident)) id = PyLong_AsUnsignedLong(ident);
        PyErr_Clear();
        Py_XDECREF(text);
        Py_XDECREF(ident);
    }
};

PythonThread read_thread(PyObject* thread) noexcept {
    BusyGuard busy;
    return PythonThread(thread);
}

void tell(const PythonThread& known) noexcept {
    if (Recorder::is_inside() || known.id == 0 || known.name.text[0] == '\0') return;
    recorder().name_thread(known.id, known.name.text, known.name.of);
}

// threading._active: thread objects by id, of threads that run. Null where there is none. Without an import: a program
// without `threading` has no names of threads.
PyObject* active_threads() noexcept {
    PyObject* const modules = PyImport_GetModuleDict();
    PyObject* const threading = modules != nullptr ? PyDict_GetItemString(modules, "threading") : nullptr;
    PyObject* active = threading != nullptr ? PyObject_GetAttrString(threading, "_active") : nullptr;
    if (active != nullptr && !PyDict_Check(active)) Py_CLEAR(active);
    return active;
}

// The interpreter clears a thread's state at the thread's end, which has the GIL, and then what the state's dict holds.
// In the child of a fork it clears those of threads that the child does not have.
void read_last_name(PyObject* capsule) {
    auto* const thread = static_cast<PyObject*>(PyCapsule_GetPointer(capsule, nullptr));
    if (recording()) {
        ErrorKept error;
        if (const PythonThread known = read_thread(thread); known.id == own_thread_id()) tell(known);
    }
    Py_DECREF(thread);  // with all that is the program's in it
    // Freed next, it is not taken for a block from before the recording.
    tls.unknown_free = reinterpret_cast<char*>(capsule) - (PyObject_IS_GC(capsule) != 0 ? 2 * sizeof(void*) : 0);
}

void watch_end(PyThreadState* state, PyObject* thread) noexcept {
    constexpr const char* key = "hiwater";
    BusyGuard busy;
    if (state->dict == nullptr) state->dict = PyDict_New();
    if (state->dict == nullptr || PyDict_GetItemString(state->dict, key) != nullptr) return;
    PyObject* const capsule = PyCapsule_New(thread, nullptr, nullptr);
    if (capsule != nullptr && PyDict_SetItemString(state->dict, key, capsule) == 0) {
        PyCapsule_SetDestructor(capsule, read_last_name);
        Py_INCREF(thread);
    }
    Py_XDECREF(capsule);
}

PyThreadState* newest_state() noexcept { return PyInterpreterState_ThreadHead(PyInterpreterState_Get()); }

PyThreadState* state_of(ThreadId id) noexcept {
    PyThreadState* state = newest_state();
    while (state != nullptr && state->thread_id != id) state = PyThreadState_Next(state);
    return state;
}

}  // namespace

void name_started_thread(ThreadName* out) noexcept {
    if (PyGILState_Check() == 0) return;
    BusyGuard busy;
    PyObject* thread = static_cast<PyObject*>(const_cast<void*>(hw_top_frame_self("Thread.start")));
    if (thread == nullptr) return;
    ErrorKept error;
    *out = PythonThread(thread).name;
    // The interpreter makes the state before the thread.
    if (PyThreadState* const started = newest_state(); started != PyThreadState_Get()) watch_end(started, thread);
}

void name_python_threads(bool watch_ends) noexcept {
    ErrorKept error;
    PyObject* threads;
    {
        BusyGuard busy;
        PyObject* const active = active_threads();
        threads = active != nullptr ? PyDict_Values(active) : nullptr;
        Py_XDECREF(active);
    }
    const Py_ssize_t count = threads != nullptr ? PyList_GET_SIZE(threads) : 0;
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* const thread = PyList_GET_ITEM(threads, i);
        const PythonThread known = read_thread(thread);
        tell(known);
        PyThreadState* const state = watch_ends ? state_of(known.id) : nullptr;
        if (state != nullptr) watch_end(state, thread);
    }
    BusyGuard busy;
    Py_XDECREF(threads);
}

}  // namespace hiwater::interpose
