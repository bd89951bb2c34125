// A parser that forgets the buffer of each call.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdlib.h>
#include <string.h>

static PyObject* parse(PyObject* self, PyObject* argument) {
    (void)self;
    const long bytes = PyLong_AsLong(argument);
    if (bytes <= 0) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "nothing to parse");
    char* const buffer = malloc((size_t)bytes);
    if (buffer == NULL) return PyErr_NoMemory();
    memset(buffer, 'x', (size_t)bytes);
    return PyLong_FromLong(buffer[bytes - 1]);
}

static PyMethodDef methods[] = {{"parse", parse, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "forgetful", .m_size = -1, .m_methods = methods};
PyMODINIT_FUNC PyInit_forgetful(void) { return PyModule_Create(&module); }
