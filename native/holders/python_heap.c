/* What exists in the interpreter's heap, and what refers to what. */
#include "python_heap.h"

#include "python_layout.h"

#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_gc.h>
#include <internal/pycore_interp.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_interpframe.h>
#endif
#include <string.h>
#include <structmember.h>

/* --- What differs between versions */

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

/* --- References */

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
    hw_label_kind kind = HW_ITEM;
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

/* --- What exists */

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
        if (value != NULL)
            visit(context, HW_FRAME, code, value, HW_LOCAL, PyTuple_GET_ITEM(code->co_localsplusnames, i));
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
