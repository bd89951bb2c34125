/* Reading the interpreter's heap of objects: what exists, what refers to what, and where roots are.
 *
 * For a copy of the process alone (process_copy.h), made while its thread had the GIL: nothing else runs there, and
 * lists of the collector are whole. Nothing here takes a lock, allocates, touches a reference count or calls Python
 * code; objects' tp_traverse functions are called.
 */
#ifndef HIWATER_PYTHON_HEAP_H
#define HIWATER_PYTHON_HEAP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a reference is found in the object that has it, and what the text that comes with it is: NULL where none is
 * named. A root is not in an object. */
typedef enum {
    HW_NONE = 0,        /* the root of roots; of an object: it is the root's own */
    HW_MODULE = 1,      /* root: the module of this name, a Python str */
    HW_FRAME = 2,       /* root: a running frame of this code object */
    HW_THREAD = 3,      /* root: objects that threads keep for themselves */
    HW_EXCEPTION = 4,   /* root: an exception that is being handled */
    HW_C_CODE = 5,      /* root: something that is no Python object has references */
    HW_GARBAGE = 6,     /* root: nothing has references but objects of this kind */
    HW_VARIABLE = 7,    /* of a module, an attribute in a namespace: a Python str */
    HW_LOCAL = 8,       /* a local variable: a Python str */
    HW_MEMBER = 9,      /* a member that C code declares, or a slot: a C string */
    HW_NAMESPACE = 10,  /* the object's __dict__ */
    HW_KEY = 11,        /* a key of a dict */
    HW_VALUE = 12,      /* a value of a dict */
    HW_ITEM = 13,       /* any other reference */
    HW_INTERPRETER = 14 /* root: what the interpreter itself refers to */
} hw_label_kind;

typedef void (*hw_visit_object)(void* context, const void* object);
typedef void (*hw_visit_reference)(void* context, const void* object, hw_label_kind kind, const void* text);
typedef void (*hw_visit_root)(void* context, hw_label_kind root_kind, const void* root_text, const void* object,
                              hw_label_kind kind, const void* text);

/* What roots are looked for from: taken by the thread that has the GIL, before the copy is made. */
typedef struct {
    const void* state;   /* of the calling thread */
    const void* modules; /* sys.modules, borrowed; NULL where it is no dict */
} hw_heap_roots;
hw_heap_roots hw_heap_find_roots(void);

/* Every object that the collector lists, of the state's interpreter. */
void hw_heap_each_tracked(const hw_heap_roots* roots, hw_visit_object visit, void* context);
/* Modules first, then the frames of all threads, then what threads keep, then exceptions that are being handled. Frames
 * of code below `internal_prefix` are left out. */
void hw_heap_each_root(const hw_heap_roots* roots, const char* internal_prefix, hw_visit_root visit, void* context);
/* Each reference that an object has. `is_namespace`: its keys name variables or attributes. */
void hw_object_each_reference(const void* object, int is_namespace, hw_visit_reference visit, void* context);

int hw_object_is_container(const void* object); /* may have references */
int hw_object_is_tracked(const void* object);   /* of a container: hw_heap_each_tracked() visits it */
int hw_object_is_immortal(const void* object);
int64_t hw_object_references_to(const void* object);
const void* hw_object_type(const void* object);

/* Where its block starts, if it has one of its own, and how many bytes it takes there, by its type. */
uintptr_t hw_object_block(const void* object);
uint64_t hw_object_bytes(const void* object);
/* A block beside it, with the values of its attributes; 0 where there is none. */
uintptr_t hw_object_values_block(const void* object);
/* The buffer of a list, a dict, a set, a bytearray or an array of numpy's, and its size by the object's own account:
 * for one that was not recorded. 0 where there is none. */
uintptr_t hw_object_buffer(const void* object, uint64_t* bytes);
/* The words of an object in which C code may keep addresses of blocks that belong to it; returns how many. 0 for types
 * that have none. */
uint32_t hw_object_words(const void* object, const uintptr_t** words);
/* Whether its words may have references that its tp_traverse leaves out. Those of the language's own types have none,
 * or do not own what they lead to. */
int hw_object_may_hide_references(const void* object);
int hw_object_is_weak_list(const void* object, const uintptr_t* word); /* the word leads to weak references to it */

int hw_type_is_builtin(const void* type);     /* one of the language's own, such as dict or function */
const char* hw_type_c_name(const void* type); /* its tp_name */
/* "module.Name", UTF-8, cut to `size`. Returns the bytes written. */
uint32_t hw_type_name(const void* type, char* buffer, uint32_t size);
/* "function (file:line)" of a code object. */
uint32_t hw_code_name(const void* code, char* buffer, uint32_t size);

#ifdef __cplusplus
}
#endif
#endif
