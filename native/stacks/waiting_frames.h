/* The frames of a thread that waits, read by another one without the GIL. The thread may run again at any moment, so
 * all is copied by the caller's function, which refuses what is not there any more. */
#ifndef HIWATER_WAITING_FRAMES_H
#define HIWATER_WAITING_FRAMES_H

enum { HW_MOST_WAITING_FRAMES = 500, HW_MOST_WINDOWS = 4096 };

static const hw_frame* copied_top(const PyThreadState* state, hw_copy copy) {
#if PY_VERSION_HEX < 0x030d0000
    _PyCFrame loop;
    return copy(&loop, state->cframe, sizeof loop) ? loop.current_frame : NULL;
#else
    (void)copy;
    return state->current_frame;
#endif
}

/* What may be a code object. */
static const void* copied_executable(const hw_frame* f) {
#if PY_VERSION_HEX < 0x030c0000
    return f->f_code;
#else
    if (f->owner >= HW_OWNED_BY_LOOP) return NULL;
#if PY_VERSION_HEX < 0x030d0000
    return f->f_code;
#elif PY_VERSION_HEX < 0x030e0000
    return f->f_executable;
#else
    return PyStackRef_AsPyObjectBorrow(f->f_executable);
#endif
#endif
}

void hw_frames_of_waiting(hw_state of, hw_copy copy, hw_visit_copied visit, void* context) {
    PyThreadState state;
    if (of.at == NULL || !copy(&state, of.at, sizeof state) || state.id != of.id || is_running(of.at, &state)) return;
    hw_frame f;
    const hw_frame* at = copied_top(&state, copy);
    for (int left = HW_MOST_WAITING_FRAMES; at != NULL && left != 0; --left, at = f.previous) {
        if (!copy(&f, at, offsetof(hw_frame, localsplus))) break;
        const void* const code = copied_executable(&f);
        if (code != NULL && visit(code, frame_instr(&f), context) != 0) break;
    }
}

uint32_t hw_waiting_states(hw_state* states, uint32_t most, hw_copy copy) {
    PyThreadState state;
    uint32_t count = 0;
    PyInterpreterState* const interpreter = PyInterpreterState_Main(); /* NULL once it is finalized */
    const PyThreadState* at = interpreter == NULL ? NULL : PyInterpreterState_ThreadHead(interpreter);
    for (uint32_t left = 4 * most; at != NULL && left != 0 && count != most; --left, at = state.next) {
        if (!copy(&state, at, sizeof state)) break;
        if (!is_running(at, &state)) states[count++] = (hw_state){at, state.id};
    }
    return count;
}

/* The object may become another one between two copies: what the first one said of it counts. */
static uint32_t copied_text(const void* str, hw_copy copy, hw_copied_code* to, char* out, uint32_t size) {
    PyASCIIObject head;
    if (!copy(&head, str, sizeof head) || Py_TYPE((PyObject*)&head) != &PyUnicode_Type || !head.state.compact) return 0;
    const size_t width = head.state.kind, length = (size_t)head.length;
    if (width != 1 && width != 2 && width != 4) return 0;
    const size_t before = head.state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject);
    const size_t most = (sizeof to->room - before) / width, taken = length < most ? length : most;
    if (!copy(to->room, str, before + taken * width)) return 0;
    head.length = (Py_ssize_t)taken;
    memcpy(to->room, &head, sizeof head);
    return hw_str_utf8(to->room, out, size);
}

/* As line_at(). */
static int32_t copied_line(const PyCodeObject* code, int32_t offset, hw_copy copy, hw_copied_code* to) {
    enum { kLongestEntry = 32 };
    PyBytesObject head;
    if (!copy(&head, code->co_linetable, offsetof(PyBytesObject, ob_sval)) ||
        Py_TYPE((PyObject*)&head) != &PyBytes_Type)
        return -1;
    const char* from = (const char*)code->co_linetable + offsetof(PyBytesObject, ob_sval);
    const char* const end = from + Py_SIZE((PyObject*)&head);
    hw_line_cursor cursor = {code, NULL, 0, 0, code->co_firstlineno, -1};
    for (int windows = 0; from < end && windows != HW_MOST_WINDOWS; ++windows) {
        const size_t left = (size_t)(end - from), count = left < sizeof to->room ? left : sizeof to->room;
        if (!copy(to->room, from, count)) return -1;
        const unsigned char *const window = (const unsigned char*)to->room, *const limit = window + count;
        for (cursor.entry = window; cursor.entry + (count == left ? 1 : kLongestEntry) <= limit;) {
            read_location(&cursor, limit);
            if (cursor.end > offset) return cursor.entry_line;
        }
        from += cursor.entry - window;
    }
    return -1;
}

int hw_describe_copied(const void* at, const void* instr, hw_copy copy, hw_copied_code* to) {
    static const char of_dataclass[] = "__create_fn__.<locals>.", in_no_file[] = "<string>";
    PyCodeObject code;
    if (!copy(&code, at, sizeof code) || Py_TYPE((PyObject*)&code) != &PyCode_Type) return 0;
    const int64_t offset = (const char*)instr - (const char*)hw_code_start(at);
    if (offset < (int64_t)code._co_firsttraceable * (int64_t)sizeof(_Py_CODEUNIT) || offset > INT32_MAX) return 0;
    to->function_bytes = copied_text(code.co_qualname, copy, to, to->function, sizeof to->function);
    to->file_bytes = copied_text(code.co_filename, copy, to, to->file, sizeof to->file);
    to->first_line = code.co_firstlineno;
    const int32_t line = copied_line(&code, (int32_t)offset, copy, to);
    to->line = line > 0 ? line : code.co_firstlineno;
    to->is_generated = to->file_bytes == sizeof in_no_file - 1 &&
                       memcmp(to->file, in_no_file, sizeof in_no_file - 1) == 0 &&
                       to->function_bytes >= sizeof of_dataclass - 1 &&
                       memcmp(to->function, of_dataclass, sizeof of_dataclass - 1) == 0;
    return to->file_bytes != 0;
}

#endif
