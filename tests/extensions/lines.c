// The engine's reading of line tables, beside the interpreter's own. Loaded with ctypes.PyDLL: the GIL is held.
#define Py_BUILD_CORE 1
#pragma GCC diagnostic ignored "-Wunused-parameter" /* in the interpreter's own headers, from 3.15 on */
#include <Python.h>

#if PY_VERSION_HEX >= 0x030f0000
#include "../../native/stacks/frames_315.c"
#elif PY_VERSION_HEX >= 0x030e0000
#include "../../native/stacks/frames_314.c"
#elif PY_VERSION_HEX >= 0x030d0000
#include "../../native/stacks/frames_313.c"
#elif PY_VERSION_HEX >= 0x030c0000
#include "../../native/stacks/frames_312.c"
#else
#include "../../native/stacks/frames_311.c"
#endif

static Py_ssize_t bytes_of(PyObject* code) { return (Py_ssize_t)hw_code_bytes(code); }

// Bytes of code as the engine sees them.
Py_ssize_t code_bytes(PyObject* code) { return bytes_of(code); }

// The line of each instruction, asked in this order: 1 forwards, -1 backwards, 0 each with a cursor of its own. One
// more is asked for than there are: the last lies behind the end.
PyObject* lines_read(PyObject* code, int order) {
    const Py_ssize_t count = bytes_of(code) / (Py_ssize_t)sizeof(_Py_CODEUNIT) + 1;
    PyObject* lines = PyList_New(count);
    hw_line_cursor cursor = {0};
    for (Py_ssize_t k = 0; lines != NULL && k < count; ++k) {
        const Py_ssize_t i = order < 0 ? count - 1 - k : k;
        if (order == 0) cursor = (hw_line_cursor){0};
        const int32_t line = line_at((PyCodeObject*)code, (int32_t)(i * (Py_ssize_t)sizeof(_Py_CODEUNIT)), &cursor);
        PyList_SET_ITEM(lines, i, PyLong_FromLong(line));
    }
    return lines;
}

// The same, as the interpreter says.
PyObject* lines_told(PyObject* code) {
    const Py_ssize_t count = bytes_of(code) / (Py_ssize_t)sizeof(_Py_CODEUNIT) + 1;
    PyObject* lines = PyList_New(count);
    for (Py_ssize_t i = 0; lines != NULL && i < count; ++i) {
        const int offset = (int)(i * (Py_ssize_t)sizeof(_Py_CODEUNIT));
#ifdef Py_DEBUG
        const int is_behind = i == count - 1; /* a debug build ends the process when asked */
#else
        const int is_behind = 0;
#endif
        PyList_SET_ITEM(lines, i, PyLong_FromLong(is_behind ? -1 : PyCode_Addr2Line((PyCodeObject*)code, offset)));
    }
    return lines;
}

// The line a stack would show for a frame that stands at the instruction; None for a frame that is still being built.
PyObject* line_shown(PyObject* code, Py_ssize_t instruction) {
    hw_frame frame;
    memset(&frame, 0, sizeof frame);
    _Py_CODEUNIT* const instr = _PyCode_CODE((PyCodeObject*)code) + instruction;
#if PY_VERSION_HEX >= 0x030e0000
    frame.f_executable = PyStackRef_FromPyObjectBorrow(code);
    frame.instr_ptr = instr;
#elif PY_VERSION_HEX >= 0x030d0000
    frame.f_executable = code;
    frame.instr_ptr = instr;
#else
    frame.f_code = (PyCodeObject*)code;
    frame.prev_instr = instr;
#endif
    hw_slot slot;
    slot_fill(&slot, &frame);
    hw_line_cursor cursor = {0};
    hw_code_info info;
    if (!hw_frame_describe(&slot, &cursor, &info)) Py_RETURN_NONE;
    return PyLong_FromLong(info.line);
}
