// Included before all else in nanobind's own files. Where nanobind is loaded it compiles a function in Python that
// clears the caches of `typing` at exit, for its check for leaks. In a recorded program that would be one more callback
// and 0.15 ms of each start. nanobind goes on where the function cannot be compiled.
#pragma once

#include <Python.h>

#undef Py_CompileString
#define Py_CompileString(text, file, kind) nullptr
