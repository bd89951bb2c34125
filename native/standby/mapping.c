// Maps a file for a program in standby, whose engine is not loaded. Python's own mmap keeps a duplicate of the
// descriptor: a daemon that closes all descriptors gets that number for a socket of its own, and loses it when the
// mapping goes.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sys/mman.h>

static PyObject* map_shared(PyObject* module, PyObject* arguments) {
    (void)module;
    int descriptor;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "in", &descriptor, &size)) return NULL;
    void* const at = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (at == MAP_FAILED) return PyErr_SetFromErrno(PyExc_OSError);
    return PyMemoryView_FromMemory((char*)at, size, PyBUF_WRITE);
}

static PyMethodDef kMethods[] = {
    {"map_shared", map_shared, METH_VARARGS,
     PyDoc_STR("Map the first bytes of a file, for good: (descriptor, size) -> memoryview. Raises OSError.")},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_mapping", NULL, 0, kMethods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__mapping(void) { return PyModuleDef_Init(&kModule); }
