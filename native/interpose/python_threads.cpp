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
    pthread_t id = 0;  // 0: not started
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

void tell(PyObject* thread) noexcept {
    if (Recorder::is_inside()) return;
    const PythonThread known = read_thread(thread);
    if (known.id != 0 && known.name.text[0] != '\0')
        Recorder::instance().name_thread(known.id, known.name.text, known.name.of);
}

// `thread.name = …` calls a Python function. Its way of being called is ours meanwhile, which no program sees.
PyFunctionObject* g_setter = nullptr;
vectorcallfunc g_below = nullptr;

// Without an import: a program without `threading` has no names of threads.
PyObject* threading_module() noexcept {
    PyObject* const modules = PyImport_GetModuleDict();
    return modules == nullptr ? nullptr : Py_XNewRef(PyDict_GetItemString(modules, "threading"));
}

// threading._active: thread objects by id, of threads that run. Null where there is none.
PyObject* active_threads() noexcept {
    PyObject* const threading = threading_module();
    PyObject* active = threading != nullptr ? PyObject_GetAttrString(threading, "_active") : nullptr;
    if (active != nullptr && !PyDict_Check(active)) Py_CLEAR(active);
    Py_XDECREF(threading);
    return active;
}

// Its id may be another's by now where it has ended.
bool is_active(PyObject* thread) noexcept {
    BusyGuard busy;
    PyObject* const active = active_threads();
    PyObject* const id = active != nullptr ? PyObject_GetAttrString(thread, "_ident") : nullptr;
    const bool found = id != nullptr && PyDict_GetItem(active, id) == thread;
    Py_XDECREF(id);
    Py_XDECREF(active);
    return found;
}

PyObject* set_name(PyObject* setter, PyObject* const* arguments, std::size_t count, PyObject* names) {
    PyObject* const result = g_below(setter, arguments, count, names);
    if (result != nullptr && PyVectorcall_NARGS(count) > 0 && recording()) {
        ErrorKept error;
        if (is_active(arguments[0])) tell(arguments[0]);
    }
    return result;
}

void follow_names(PyObject* threading) noexcept {
    if (g_setter != nullptr) return;
    PyObject* const type = PyObject_GetAttrString(threading, "Thread");
    PyObject* const property = type != nullptr ? PyObject_GetAttrString(type, "name") : nullptr;
    PyObject* const setter = property != nullptr ? PyObject_GetAttrString(property, "fset") : nullptr;
    if (setter != nullptr && PyFunction_Check(setter)) {
        g_setter = reinterpret_cast<PyFunctionObject*>(Py_NewRef(setter));
        g_below = g_setter->vectorcall;
        g_setter->vectorcall = set_name;
    }
    PyErr_Clear();
    Py_XDECREF(setter);
    Py_XDECREF(property);
    Py_XDECREF(type);
}

}  // namespace

void name_started_thread(ThreadName* out) noexcept {
    if (PyGILState_Check() == 0) return;
    BusyGuard busy;
    PyObject* thread = static_cast<PyObject*>(const_cast<void*>(hw_top_frame_self("Thread.start")));
    if (thread == nullptr) return;
    ErrorKept error;
    *out = PythonThread(thread).name;
    if (PyObject* const threading = threading_module()) {
        follow_names(threading);
        Py_DECREF(threading);
    }
}

void name_python_threads() noexcept {
    ErrorKept error;
    PyObject *threading, *active, *threads;
    {
        BusyGuard busy;
        threading = threading_module();
        active = active_threads();
        threads = active != nullptr ? PyDict_Values(active) : nullptr;
        if (threading != nullptr) follow_names(threading);
    }
    const Py_ssize_t count = threads != nullptr ? PyList_GET_SIZE(threads) : 0;
    for (Py_ssize_t i = 0; i < count; ++i) tell(PyList_GET_ITEM(threads, i));
    BusyGuard busy;
    PyErr_Clear();
    Py_XDECREF(threads);
    Py_XDECREF(active);
    Py_XDECREF(threading);
}

void forget_python_threads() noexcept {
    if (g_setter == nullptr || g_setter->vectorcall != set_name) return;
    g_setter->vectorcall = g_below;
    Py_CLEAR(g_setter);
}

}  // namespace hiwater::interpose
