/* The names of types and of code objects. */
#include <Python.h>
#include <stdio.h>
#include <string.h>

#include "python_heap.h"
#include "stacks/frames.h"

/* Of a class made in Python: its attribute, a str, found without hashing. */
static PyObject* module_of(PyTypeObject* type) {
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (type->tp_dict != NULL && PyDict_Next(type->tp_dict, &at, &key, &value))
        if (PyUnicode_Check(key) && PyUnicode_CompareWithASCIIString(key, "__module__") == 0)
            return PyUnicode_Check(value) ? value : NULL;
    return NULL;
}

int hw_type_is_builtin(const void* type_object) {
    const PyTypeObject* const type = (const PyTypeObject*)type_object;
    return !PyType_HasFeature((PyTypeObject*)type_object, Py_TPFLAGS_HEAPTYPE) && strchr(type->tp_name, '.') == NULL;
}

const char* hw_type_c_name(const void* type) { return ((const PyTypeObject*)type)->tp_name; }

uint32_t hw_type_name(const void* type_object, char* buffer, uint32_t size) {
    PyTypeObject* const type = (PyTypeObject*)type_object;
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        const size_t length = strlen(type->tp_name);
        const uint32_t written = length < size ? (uint32_t)length : size;
        memcpy(buffer, type->tp_name, written);
        return written;
    }
    uint32_t used = 0;
    PyObject* const module = module_of(type);
    if (module != NULL && PyUnicode_CompareWithASCIIString(module, "builtins") != 0) {
        used = hw_str_utf8(module, buffer, size / 2);
        buffer[used++] = '.';
    }
    return used + hw_str_utf8(((PyHeapTypeObject*)type)->ht_qualname, buffer + used, size - used);
}

uint32_t hw_code_name(const void* code_object, char* buffer, uint32_t size) {
    const PyCodeObject* const code = (const PyCodeObject*)code_object;
    uint32_t used = hw_str_utf8(code->co_qualname, buffer, size / 3);
    char line[24];
    const int digits = snprintf(line, sizeof line, ":%d)", code->co_firstlineno);
    memcpy(buffer + used, " (", 2);
    used += 2;
    used += hw_str_utf8(code->co_filename, buffer + used, size - used - (uint32_t)sizeof line);
    memcpy(buffer + used, line, (size_t)digits);
    return used + (uint32_t)digits;
}
