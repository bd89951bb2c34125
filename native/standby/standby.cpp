// What a program in standby loads instead of the engine: it maps the control file, and a thread without the GIL watches
// it. The thread takes the GIL for a request alone: a program that waits for nothing of hiwater's is disturbed by
// nothing, and strict seccomp, which ends a thread that waits for the GIL, leaves it alone.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/main_thread_end.h"
#include "base/own_thread.h"

namespace {

constexpr std::uint64_t kIntervalNs = 500'000'000;
constexpr std::size_t kStackBytes = 2 << 20;  // an answer imports modules

hiwater::OwnThread g_thread;
pid_t g_process = 0;                       // whose thread it is
const std::uint32_t* g_numbers = nullptr;  // of the last request, and of the last answer
PyObject* g_answer = nullptr;

// Whether to go on watching.
bool answer() {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject* const done = PyObject_CallNoArgs(g_answer);
    if (done == nullptr) PyErr_WriteUnraisable(g_answer);
    Py_XDECREF(done);
    PyGILState_Release(state);
    return done != nullptr;
}

void watch() {
    bool goes_on = true;
    while (goes_on && g_thread.goes_on_after(kIntervalNs)) {
        hiwater::end_as_main_thread();
        const auto number = [](int which) { return __atomic_load_n(g_numbers + which, __ATOMIC_ACQUIRE); };
        if (number(0) != number(1)) goes_on = answer();
    }
}

// Python's own mmap keeps a duplicate of the descriptor: a daemon that closes all descriptors gets that number for a
// socket of its own, and loses it when the mapping goes.
PyObject* map_shared(PyObject*, PyObject* arguments) {
    int descriptor;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "in", &descriptor, &size)) return nullptr;
    void* const at = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
    return PyMemoryView_FromMemory(static_cast<char*>(at), size, PyBUF_WRITE);
}

PyObject* begin(PyObject*, PyObject* arguments) {
    Py_buffer numbers;
    PyObject* answer;
    if (!PyArg_ParseTuple(arguments, "y*O", &numbers, &answer)) return nullptr;
    g_numbers = static_cast<const std::uint32_t*>(numbers.buf);  // mapped for good
    PyBuffer_Release(&numbers);
    Py_XSETREF(g_answer, Py_NewRef(answer));
    g_process = ::getpid();
    g_thread.begin("hiwater", watch, kStackBytes);  // where no thread can be had, nothing is watched
    Py_RETURN_NONE;
}

PyObject* end(PyObject*, PyObject*) {
    if (g_process != ::getpid()) g_thread.forget_in_child();  // native code has forked
    Py_BEGIN_ALLOW_THREADS                                    // it may be answering
        g_thread.end();
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyMethodDef kMethods[] = {
    {"map_shared", map_shared, METH_VARARGS,
     PyDoc_STR("Map the first bytes of a file, for good: (descriptor, size) -> memoryview. Raises OSError.")},
    {"begin", begin, METH_VARARGS,
     PyDoc_STR("Begin the thread: (two numbers in a mapping, what to call while they differ).")},
    {"end", end, METH_NOARGS, PyDoc_STR("End the thread, and wait until it has ended.")},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_standby", nullptr, 0, kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__standby(void) { return PyModuleDef_Init(&kModule); }
