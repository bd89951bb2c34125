// Makes and frees blocks of given sizes, by one of two allocators. Nothing else is allocated meanwhile.
#include <stdlib.h>

extern void* PyObject_Malloc(size_t size);
extern void PyObject_Free(void* block);

void make_and_free(const size_t* sizes, size_t count, int objects) {
    for (size_t i = 0; i < count; i++) {
        if (objects)
            PyObject_Free(PyObject_Malloc(sizes[i]));
        else
            free(malloc(sizes[i]));
    }
}
