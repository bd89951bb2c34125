#include <Python.h>

#include "interpose/exit_callback.h"

#include <unistd.h>

namespace hiwater::interpose {

namespace {

PyObject* g_callable = nullptr;
pid_t g_set_by = 0;

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

}  // namespace hiwater::interpose
