#define Py_BUILD_CORE 1
#include "python_heap.h"

#include <Python.h>
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_gc.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_object.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe.h>
#endif
#include <stdio.h>
#include <string.h>
#include <structmember.h>

#include "stacks/frames.h"

/* --- What differs between versions ------------------------------------------------------------------------------------------------- */

typedef struct _PyInterpreterFrame frame_t;

static const frame_t* top_frame_of(const PyThreadState* state) {
#if PY_VERSION_HEX < 0x030d0000
    return state->cframe == NULL ? NULL : state->cframe->current_frame;
#else
    return state->current_frame;
#endif
}

static PyCodeObject* code_of(const frame_t* f) {
#if PY_VERSION_HEX < 0x030c0000
    return f->f_code;
#elif PY_VERSION_HEX < 0x030d0000
    return f->owner == FRAME_OWNED_BY_CSTACK ? NULL : f->f_code;
#elif PY_VERSION_HEX < 0x030e0000
    return f->owner == FRAME_OWNED_BY_CSTACK || !PyCode_Check(f->f_executable) ? NULL : (PyCodeObject*)f->f_executable;
#else
    if (f->owner >= FRAME_OWNED_BY_INTERPRETER) return NULL;
    PyObject* executable = PyStackRef_AsPyObjectBorrow(f->f_executable);
    return executable != NULL && PyCode_Check(executable) ? (PyCodeObject*)executable : NULL;
#endif
}

static PyObject* local_of(const frame_t* f, int i) {
#if PY_VERSION_HEX < 0x030e0000
    return f->localsplus[i];
#else
    return PyStackRef_AsPyObjectBorrow(f->localsplus[i]);
#endif
}

static PyObject* function_of(const frame_t* f) {
#if PY_VERSION_HEX < 0x030c0000
    return (PyObject*)f->f_func;
#elif PY_VERSION_HEX < 0x030e0000
    return f->f_funcobj;
#else
    return PyStackRef_AsPyObjectBorrow(f->f_funcobj);
#endif
}

/* The lists of the collector. In the first releases of 3.14 they have other names, and the same places. */
static const struct gc_generation* generations_of(const struct _gc_runtime_state* gc) {
#if PY_VERSION_HEX < 0x030e0000
    return gc->generations;
#else
    return &gc->permanent_generation - NUM_GENERATIONS;
#endif
}

static PyDictValues* values_of(PyObject* o) {
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

/* The object's __dict__, where there is one. */
static PyObject* dict_of(PyObject* o) {
    PyTypeObject* const type = Py_TYPE(o);
    if (PyType_HasFeature(type, Py_TPFLAGS_MANAGED_DICT)) {
#if PY_VERSION_HEX < 0x030c0000
        return *_PyObject_ManagedDictPointer(o);
#elif PY_VERSION_HEX < 0x030d0000
        const PyDictOrValues either = *_PyObject_DictOrValuesPointer(o);
        return _PyDictOrValues_IsValues(either) ? NULL : _PyDictOrValues_GetDict(either);
#else
        return (PyObject*)_PyObject_GetManagedDict(o);
#endif
    }
    if (PyType_Check(o)) return ((PyTypeObject*)o)->tp_dict;
    return type->tp_dictoffset > 0 ? *(PyObject**)((char*)o + type->tp_dictoffset) : NULL;
}

int hw_object_is_immortal(const void* object) {
#if PY_VERSION_HEX < 0x030c0000
    (void)object;
    return 0;
#else
    return _Py_IsImmortal((PyObject*)object);
#endif
}

/* --- Objects ------------------------------------------------------------------------------------------------------------------------- */

static PyObject* as_object(const void* object) { return (PyObject*)object; }

static int is_static_type(PyObject* o) { return PyType_Check(o) && !PyType_HasFeature((PyTypeObject*)o, Py_TPFLAGS_HEAPTYPE); }

int hw_object_is_container(const void* object) {
    PyObject* const o = as_object(object);
    if (is_static_type(o)) return 1;
    return Py_TYPE(o)->tp_traverse != NULL && PyObject_IS_GC(o);
}

int hw_object_is_tracked(const void* object) {
    PyObject* const o = as_object(object);
    return !is_static_type(o) && PyObject_GC_IsTracked(o);
}

int64_t hw_object_references_to(const void* object) { return (int64_t)Py_REFCNT(as_object(object)); }

const void* hw_object_type(const void* object) { return Py_TYPE(as_object(object)); }

uintptr_t hw_object_block(const void* object) { return (uintptr_t)object - _PyType_PreHeaderSize(Py_TYPE(as_object(object))); }

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
    const Py_ssize_t items = PyLong_Check(o) ? 1 : ((PyVarObject*)o)->ob_size; /* of an int the sign and the count share a word */
    return items > 0 ? bytes + (uint64_t)items * (uint64_t)type->tp_itemsize : bytes;
}

uintptr_t hw_object_values_block(const void* object) {
#if PY_VERSION_HEX < 0x030d0000
    const PyDictValues* values = values_of(as_object(object));
    if (values == NULL) return 0;
    return (uintptr_t)values - ((const uint8_t*)values)[-1]; /* the byte before the values is the size of what lies before them */
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
    return type->tp_basicsize >= (Py_ssize_t)sizeof(array_t) && strcmp(type->tp_name, "numpy.ndarray") == 0 ? (const array_t*)o
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
        if (dict->ma_values != NULL || dict->ma_keys->dk_log2_size == 0) return 0; /* its class's; the one of all empty dicts */
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
        kPlain = Py_TPFLAGS_LONG_SUBCLASS | Py_TPFLAGS_TUPLE_SUBCLASS | Py_TPFLAGS_BYTES_SUBCLASS | Py_TPFLAGS_UNICODE_SUBCLASS
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
    return !PyType_Check(o) && !PyWeakref_Check(o) && !PyFunction_Check(o) && !PyModule_Check(o) && !PyDict_CheckExact(o) &&
           !PyList_CheckExact(o) && !PyAnySet_CheckExact(o) && !PyFrame_Check(o) && !PyCode_Check(o);
}

int hw_object_is_weak_list(const void* object, const uintptr_t* word) {
    const Py_ssize_t offset = Py_TYPE(as_object(object))->tp_weaklistoffset;
    return offset > 0 && (const char*)word == (const char*)object + offset;
}

/* --- References ---------------------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject* source;
    hw_visit_reference visit;
    void* context;
    PyObject* dict;
    const PyDictValues* values;
    const frame_t* frame; /* of a generator or a frame object, where its code is known */
} reader;

/* Which attribute of the source has the value, in the order in which its class first saw attributes. */
static PyObject* attribute_named(const reader* r, PyObject* value) {
    PyDictKeysObject* const keys = ((PyHeapTypeObject*)Py_TYPE(r->source))->ht_cached_keys;
    if (keys == NULL || keys->dk_kind == DICT_KEYS_GENERAL) return NULL;
    const PyDictUnicodeEntry* const entries = DK_UNICODE_ENTRIES(keys);
    for (Py_ssize_t i = 0; i < keys->dk_nentries; ++i)
        if (r->values->values[i] == value) return entries[i].me_key;
    return NULL;
}

static const char* member_named(PyObject* source, PyObject* value) {
    for (PyTypeObject* type = Py_TYPE(source); type != NULL; type = type->tp_base) {
        if (type->tp_members == NULL) continue;
        for (const PyMemberDef* m = type->tp_members; m->name != NULL; ++m)
            if ((m->type == T_OBJECT || m->type == T_OBJECT_EX) && *(PyObject**)((char*)source + m->offset) == value)
                return m->name;
    }
    return NULL;
}

static PyObject* local_named(const frame_t* frame, PyObject* value) {
    PyCodeObject* const code = code_of(frame);
    for (int i = 0; i < code->co_nlocalsplus; ++i)
        if (local_of(frame, i) == value) return PyTuple_GET_ITEM(code->co_localsplusnames, i);
    return NULL;
}

static int read_named(PyObject* value, void* arg) {
    const reader* r = (const reader*)arg;
    const void* text = NULL;
    int kind = HW_ITEM;
    if (value == r->dict) {
        kind = HW_NAMESPACE;
    } else if (r->values != NULL && (text = attribute_named(r, value)) != NULL) {
        kind = HW_VARIABLE;
    } else if (r->frame != NULL && (text = local_named(r->frame, value)) != NULL) {
        kind = HW_LOCAL;
    } else if ((text = member_named(r->source, value)) != NULL) {
        kind = HW_MEMBER;
    }
    r->visit(r->context, value, kind, text);
    return 0;
}

static int read_plain(PyObject* value, void* arg) {
    const reader* r = (const reader*)arg;
    r->visit(r->context, value, HW_ITEM, NULL);
    return 0;
}

static void read_dict(PyObject* dict, int is_namespace, hw_visit_reference visit, void* context) {
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict, &at, &key, &value)) {
        const int is_named = is_namespace && PyUnicode_Check(key);
        visit(context, key, HW_KEY, NULL);
        visit(context, value, is_named ? HW_VARIABLE : HW_VALUE, is_named ? key : NULL);
    }
}

/* The frame in a generator, a coroutine or a frame object. */
static const frame_t* frame_in(PyObject* o) {
    const frame_t* frame = NULL;
    if (PyGen_CheckExact(o) || PyCoro_CheckExact(o) || PyAsyncGen_CheckExact(o)) {
        const PyGenObject* const generator = (const PyGenObject*)o;
        if (generator->gi_frame_state < FRAME_CLEARED) frame = (const frame_t*)(const void*)&generator->gi_iframe;
    } else if (PyFrame_Check(o)) {
        frame = ((const PyFrameObject*)o)->f_frame;
    }
    return frame != NULL && code_of(frame) != NULL ? frame : NULL;
}

static void read_static_type(PyTypeObject* type, hw_visit_reference visit, void* context) {
    if (type->tp_dict != NULL) visit(context, type->tp_dict, HW_NAMESPACE, NULL);
    if (type->tp_bases != NULL) visit(context, type->tp_bases, HW_ITEM, NULL);
    if (type->tp_mro != NULL) visit(context, type->tp_mro, HW_ITEM, NULL);
}

void hw_object_each_reference(const void* object, int is_namespace, hw_visit_reference visit, void* context) {
    PyObject* const o = as_object(object);
    if (is_static_type(o)) {
        read_static_type((PyTypeObject*)o, visit, context);
    } else if (PyDict_CheckExact(o)) {
        read_dict(o, is_namespace, visit, context);
    } else if (PyList_CheckExact(o) || PyTuple_CheckExact(o) || PyAnySet_CheckExact(o) || PyCell_Check(o)) {
        reader r = {o, visit, context, NULL, NULL, NULL};
        Py_TYPE(o)->tp_traverse(o, read_plain, &r);
    } else {
        reader r = {o, visit, context, dict_of(o), values_of(o), frame_in(o)};
        Py_TYPE(o)->tp_traverse(o, read_named, &r);
    }
}

/* --- What exists --------------------------------------------------------------------------------------------------------------------- */

hw_heap_roots hw_heap_find_roots(void) {
    PyObject* const modules = PyImport_GetModuleDict();
    const hw_heap_roots roots = {PyThreadState_Get(), modules != NULL && PyDict_Check(modules) ? modules : NULL};
    return roots;
}

static void each_in_list(const PyGC_Head* head, hw_visit_object visit, void* context) {
    const uintptr_t flags = 3; /* the collector uses these bits of its links while it runs */
    for (const PyGC_Head* at = (const PyGC_Head*)(head->_gc_next & ~flags); at != head;
         at = (const PyGC_Head*)(at->_gc_next & ~flags))
        visit(context, at + 1);
}

void hw_heap_each_tracked(const hw_heap_roots* roots, hw_visit_object visit, void* context) {
    const struct _gc_runtime_state* const gc = &((const PyThreadState*)roots->state)->interp->gc;
    for (int i = 0; i < NUM_GENERATIONS; ++i) each_in_list(&generations_of(gc)[i].head, visit, context);
    each_in_list(&gc->permanent_generation.head, visit, context);
}

static void each_module(PyObject* modules, hw_visit_root visit, void* context) {
    Py_ssize_t at = 0;
    PyObject *name, *module;
    while (PyDict_Next(modules, &at, &name, &module)) {
        if (!PyModule_Check(module) || !PyUnicode_Check(name)) continue;
        visit(context, HW_MODULE, name, PyModule_GetDict(module), HW_NONE, NULL);
    }
    at = 0;
    while (PyDict_Next(modules, &at, &name, &module))
        if (PyUnicode_Check(name)) visit(context, HW_MODULE, name, module, HW_ITEM, NULL);
}

static int is_below(PyObject* file, const char* prefix) {
    const size_t length = strlen(prefix);
    return length != 0 && PyUnicode_IS_COMPACT_ASCII(file) && (size_t)PyUnicode_GET_LENGTH(file) >= length &&
           memcmp(PyUnicode_DATA(file), prefix, length) == 0;
}

static void each_local(const frame_t* frame, PyCodeObject* code, hw_visit_root visit, void* context) {
    for (int i = 0; i < code->co_nlocalsplus; ++i) {
        PyObject* const value = local_of(frame, i);
        if (value != NULL) visit(context, HW_FRAME, code, value, HW_LOCAL, PyTuple_GET_ITEM(code->co_localsplusnames, i));
    }
    if (frame->f_locals != NULL) visit(context, HW_FRAME, code, frame->f_locals, HW_NAMESPACE, NULL);
    PyObject* const function = function_of(frame);
    if (function != NULL) visit(context, HW_FRAME, code, function, HW_ITEM, NULL);
    visit(context, HW_FRAME, code, code, HW_ITEM, NULL);
}

static const PyThreadState* first_state(const PyThreadState* state) {
    while (state->prev != NULL) state = state->prev;
    return state;
}

void hw_heap_each_root(const hw_heap_roots* roots, const char* internal_prefix, hw_visit_root visit, void* context) {
    if (roots->modules != NULL) each_module(as_object(roots->modules), visit, context);
    const PyThreadState* const first = first_state((const PyThreadState*)roots->state);
    for (const PyThreadState* state = first; state != NULL; state = state->next)
        for (const frame_t* frame = top_frame_of(state); frame != NULL; frame = frame->previous) {
            PyCodeObject* const code = code_of(frame);
            if (code != NULL && !is_below(code->co_filename, internal_prefix)) each_local(frame, code, visit, context);
        }
    for (const PyThreadState* state = first; state != NULL; state = state->next) {
        if (state->dict != NULL) visit(context, HW_THREAD, NULL, state->dict, HW_NONE, NULL);
        if (state->context != NULL) visit(context, HW_THREAD, NULL, state->context, HW_ITEM, NULL);
        for (const _PyErr_StackItem* item = state->exc_info; item != NULL; item = item->previous_item)
            if (item->exc_value != NULL) visit(context, HW_EXCEPTION, NULL, item->exc_value, HW_ITEM, NULL);
    }
}

/* --- Names --------------------------------------------------------------------------------------------------------------------------- */

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
