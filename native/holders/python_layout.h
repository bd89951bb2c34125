/* The interpreter's own declarations, and what python_heap.c and python_sizes.c both need of them. */
#ifndef HIWATER_PYTHON_LAYOUT_H
#define HIWATER_PYTHON_LAYOUT_H

#define Py_BUILD_CORE 1
#include <Python.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_object.h>

static inline PyObject* as_object(const void* object) { return (PyObject*)object; }

/* They are part of a library, and shorter than their type says. */
static inline int is_static_type(PyObject* o) {
    return PyType_Check(o) && !PyType_HasFeature((PyTypeObject*)o, Py_TPFLAGS_HEAPTYPE);
}

/* The values of the object's attributes, where it has them without a dict. */
static inline PyDictValues* values_of(PyObject* o) {
    if (!PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_MANAGED_DICT)) return NULL;
#if PY_VERSION_HEX < 0x030c0000
    return *_PyObject_ValuesPointer(o);
#elif PY_VERSION_HEX < 0x030d0000
    const PyDictOrValues either = *_PyObject_DictOrValuesPointer(o);
    return _PyDictOrValues_IsValues(either) ? _PyDictOrValues_GetValues(either) : NULL;
#else
    if (!PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_INLINE_VALUES)) return NULL;
    PyDictValues* values = _PyObject_InlineValues(o);
    return values->valid ? values : NULL;
#endif
}

#endif
