// The hooks of the calls by which tools read and change the table of Python's allocators.
#include <Python.h>

#include "interpose/python_hooks.h"
#include "interpose/python_tables.h"

namespace hiwater::interpose {

namespace {

void hook_PyMem_GetAllocator(PyMemAllocatorDomain name, PyMemAllocatorEx* out) {
    const PyMemAllocatorEx* const below = table_for(__builtin_return_address(0), name);
    below != nullptr ? void(*out = *below) : real<hook_PyMem_GetAllocator>(name, out);
}

void hook_PyMem_SetAllocator(PyMemAllocatorDomain name, PyMemAllocatorEx* in) {
    PyMemAllocatorEx* const below = table_for(__builtin_return_address(0), name);
    below != nullptr ? void(*below = *in) : real<hook_PyMem_SetAllocator>(name, in);
}

}  // namespace

void add_python_hooks(std::vector<Hook>* hooks) {
    hooks->push_back(hook_of<hook_PyMem_GetAllocator>("PyMem_GetAllocator", Hook::Of::process));
    hooks->push_back(hook_of<hook_PyMem_SetAllocator>("PyMem_SetAllocator", Hook::Of::process));
}

}  // namespace hiwater::interpose
