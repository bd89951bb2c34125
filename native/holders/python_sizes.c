/* What an object is, where its memory is, and how much it takes. */
#include <string.h>

#include "python_heap.h"
#include "python_layout.h"

int hw_object_is_container(const void* object) {
    PyObject* const o = as_object(object);
    if (is_static_type(o)) return 1;
    return Py_TYPE(o)->tp_traverse != NULL && PyObject_IS_GC(o);
}

int hw_object_is_tracked(const void* object) {
    PyObject* const o = as_object(object);
    return !is_static_type(o) && PyObject_GC_IsTracked(o);
}

int hw_object_is_immortal(const void* object) {
#if PY_VERSION_HEX < 0x030c0000
    (void)object;
    return 0;
#else
    return _Py_IsImmortal((PyObject*)object);
#endif
}

int64_t hw_object_references_to(const void* object) { return (int64_t)Py_REFCNT(as_object(object)); }

const void* hw_object_type(const void* object) { return Py_TYPE(as_object(object)); }

uintptr_t hw_object_block(const void* object) {
    return (uintptr_t)object - _PyType_PreHeaderSize(Py_TYPE(as_object(object)));
}

/* Their types have a size of items, and they are no PyVarObject. */
static int has_no_item_count(PyObject* o) {
    return PyGen_CheckExact(o) || PyCoro_CheckExact(o) || PyAsyncGen_CheckExact(o) || PyFrame_Check(o);
}

uint64_t hw_object_bytes(const void* object) {
    PyObject* const o = as_object(object);
    PyTypeObject* const type = Py_TYPE(o);
    if (is_static_type(o)) return 0; /* part of a library */
    uint64_t bytes = _PyType_PreHeaderSize(type) + (uint64_t)type->tp_basicsize;
    if (PyUnicode_Check(o)) return bytes + (uint64_t)PyUnicode_GET_LENGTH(o) * PyUnicode_KIND(o);
    if (type->tp_itemsize == 0 || PyType_Check(o) || has_no_item_count(o)) return bytes;
    const Py_ssize_t items =
        PyLong_Check(o) ? 1 : ((PyVarObject*)o)->ob_size; /* of an int the sign and the count share a word */
    return items > 0 ? bytes + (uint64_t)items * (uint64_t)type->tp_itemsize : bytes;
}

uintptr_t hw_object_values_block(const void* object) {
#if PY_VERSION_HEX < 0x030d0000
    const PyDictValues* values = values_of(as_object(object));
    if (values == NULL) return 0;
    return (uintptr_t)values -
           ((const uint8_t*)values)[-1]; /* the byte before the values is the size of what lies before them */
#else
    (void)object;
    return 0;
#endif
}

/* The part of numpy.ndarray's layout that is needed; it is part of numpy's ABI. */
typedef struct {
    PyObject_HEAD uintptr_t data;
    int dimensions;
    const Py_ssize_t *sizes, *strides;
    PyObject *base, *descr;
    int flags;
} array_t;

static const array_t* as_array(PyObject* o) {
    PyTypeObject* type = Py_TYPE(o);
    while (type->tp_base != NULL && type->tp_base != &PyBaseObject_Type) type = type->tp_base;
    return type->tp_basicsize >= (Py_ssize_t)sizeof(array_t) && strcmp(type->tp_name, "numpy.ndarray") == 0
               ? (const array_t*)o
               : NULL;
}

static int owns_data(const array_t* array) {
    enum { kOwnData = 4 };
    return (array->flags & kOwnData) != 0;
}

/* Of an array that owns its data, which has no gaps. */
static uint64_t data_bytes(const array_t* array) {
    uint64_t most = 0;
    for (int i = 0; i < array->dimensions; ++i) {
        if (array->sizes[i] == 0) return 0;
        const uint64_t bytes = (uint64_t)(array->sizes[i] * array->strides[i]);
        if (array->strides[i] > 0 && bytes > most) most = bytes;
    }
    return most;
}

static uint64_t keys_bytes(const PyDictKeysObject* keys) {
    const uint64_t usable = ((uint64_t)1 << keys->dk_log2_size) * 2 / 3;
    const uint64_t entry = keys->dk_kind == DICT_KEYS_GENERAL ? sizeof(PyDictKeyEntry) : sizeof(PyDictUnicodeEntry);
    return sizeof(PyDictKeysObject) + ((uint64_t)1 << keys->dk_log2_index_bytes) + usable * entry;
}

uintptr_t hw_object_buffer(const void* object, uint64_t* bytes) {
    PyObject* const o = as_object(object);
    if (PyList_Check(o)) {
        *bytes = (uint64_t)((PyListObject*)o)->allocated * sizeof(PyObject*);
        return (uintptr_t)((PyListObject*)o)->ob_item;
    }
    if (PyDict_Check(o)) {
        PyDictObject* const dict = (PyDictObject*)o;
        if (dict->ma_values != NULL || dict->ma_keys->dk_log2_size == 0)
            return 0; /* its class's; the one of all empty dicts */
        *bytes = keys_bytes(dict->ma_keys);
        return (uintptr_t)dict->ma_keys;
    }
    if (PyAnySet_Check(o)) {
        PySetObject* const set = (PySetObject*)o;
        if (set->table == set->smalltable) return 0;
        *bytes = ((uint64_t)set->mask + 1) * sizeof(setentry);
        return (uintptr_t)set->table;
    }
#if PY_VERSION_HEX < 0x030f0000 /* from then on it is in an object of its own */
    if (PyByteArray_Check(o)) {
        *bytes = (uint64_t)((PyByteArrayObject*)o)->ob_alloc;
        return (uintptr_t)((PyByteArrayObject*)o)->ob_bytes;
    }
#endif
    const array_t* const array = as_array(o);
    if (array == NULL || !owns_data(array)) return 0;
    *bytes = data_bytes(array);
    return array->data;
}

uint32_t hw_object_words(const void* object, const uintptr_t** words) {
    PyObject* const o = as_object(object);
    PyTypeObject* const type = Py_TYPE(o);
    enum {
        kPlain = Py_TPFLAGS_LONG_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_BYTES_SUBCLASS |
        Py_TPFLAGS_UNICODE_SUBCLASS
    };
    if (is_static_type(o)) return 0; /* shorter than its type says */
    if ((type->tp_flags & kPlain) != 0 || type == &PyFloat_Type || PyMemoryView_Check(o)) return 0;
    if (strcmp(type->tp_name, "managedbuffer") == 0) return 0; /* the memory is its exporter's */
    const size_t from = type->tp_itemsize != 0 ? sizeof(PyVarObject) : sizeof(PyObject);
    if ((size_t)type->tp_basicsize < from + sizeof(uintptr_t)) return 0;
    *words = (const uintptr_t*)((const char*)o + from);
    const uint32_t count = (uint32_t)(((size_t)type->tp_basicsize - from) / sizeof(uintptr_t));
    const array_t* const array = as_array(o);
    if (array == NULL || owns_data(array)) return count;
    ++*words; /* the first one is the address of the data */
    return count - 1;
}

int hw_object_may_hide_references(const void* object) {
    PyObject* const o = as_object(object);
    return !PyType_Check(o) && !PyWeakref_Check(o) && !PyFunction_Check(o) && !PyModule_Check(o) &&
           !PyDict_CheckExact(o) && !PyList_CheckExact(o) && !PyAnySet_CheckExact(o) && !PyFrame_Check(o) &&
           !PyCode_Check(o);
}

int hw_object_is_weak_list(const void* object, const uintptr_t* word) {
    const Py_ssize_t offset = Py_TYPE(as_object(object))->tp_weaklistoffset;
    return offset > 0 && (const char*)word == (const char*)object + offset;
}
