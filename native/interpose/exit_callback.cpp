#include <Python.h>

#include "interpose/exit_callback.h"

#include <unistd.h>

#include <cstdint>

#include "stacks/thread_state.h"

namespace hiwater::interpose {

namespace {

PyObject* g_callable = nullptr;
pid_t g_set_by = 0;
std::uintptr_t g_os_abort = 0;

}  // namespace

void set_exit_callback(void* callable) noexcept {
    PyObject* old = g_callable;
    g_callable = callable == Py_None ? nullptr : static_cast<PyObject*>(callable);
    g_set_by = ::getpid();
    Py_XINCREF(g_callable);
    Py_XDECREF(old);
}

void call_exit_callback(int exit_code) noexcept {
    if (g_callable == nullptr || g_set_by != ::getpid() || Py_IsInitialized() == 0 || PyGILState_Check() == 0) return;
    PyObject* callable = g_callable;
    g_callable = nullptr;
    PyObject* result = PyObject_CallFunction(callable, "i", exit_code);
    if (result == nullptr) PyErr_WriteUnraisable(callable);
    Py_XDECREF(result);
    Py_DECREF(callable);
}

void find_os_abort() noexcept {
    if (g_os_abort != 0) return;
    BusyGuard busy;
    PyObject* const posix = PyDict_GetItemString(PyImport_GetModuleDict(), "posix");
    PyObject* const abort = posix == nullptr ? nullptr : PyDict_GetItemString(PyModule_GetDict(posix), "abort");
    if (abort != nullptr && PyCFunction_Check(abort))
        g_os_abort = reinterpret_cast<std::uintptr_t>(PyCFunction_GetFunction(abort));
}

bool is_in_os_abort(const void* address) noexcept {
    constexpr std::uintptr_t kLongest = 128;  // it does nothing but call abort()
    return reinterpret_cast<std::uintptr_t>(address) - g_os_abort < kLongest;
}

}  // namespace hiwater::interpose
