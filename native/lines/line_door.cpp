#include "lines/line_door.h"

#include <nanobind/stl/string.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

#include "lines/line_events.h"
#include "lines/line_recorder.h"

namespace hiwater::lines {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// A Python function failed: sys.unraisablehook gets the error. What is no Exception, such as KeyboardInterrupt, is
// meant for the program and is raised there: false.
bool is_settled(const nb::object& function) noexcept {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
    PyErr_WriteUnraisable(function.ptr());
    return true;
}

// Bytes that a Python function returns. When it fails, its last figure stays.
class PythonMeter final : public Meter {
public:
    explicit PythonMeter(nb::object function) : function_(std::move(function)) {}
    bool read() noexcept override {
        PyObject* said = PyObject_CallNoArgs(function_.ptr());
        const long long bytes = said != nullptr ? PyLong_AsLongLong(said) : -1;
        Py_XDECREF(said);
        if (PyErr_Occurred() == nullptr) {
            this->bytes = bytes;
            return true;
        }
        return is_settled(function_);
    }

    PyObject* function() const noexcept { return function_.ptr(); }

private:
    const nb::object function_;
};

// A Python function of an event's kind, its frame's address, its code object and its line. Its failures are treated as
// a meter's.
class PythonListener final : public Listener {
public:
    explicit PythonListener(nb::object function) : function_(std::move(function)) {}
    bool hear(const Event& event) noexcept override {
        PyObject* code = const_cast<PyObject*>(static_cast<const PyObject*>(event.code));
        const auto frame = reinterpret_cast<std::uintptr_t>(event.frame);
        PyObject* said =
            PyObject_CallFunction(function_.ptr(), "iKOi", static_cast<int>(event.what),
                                  static_cast<unsigned long long>(frame), code, static_cast<int>(event.line));
        Py_XDECREF(said);
        return said != nullptr || is_settled(function_);
    }
    PyObject* function() const noexcept { return function_.ptr(); }

private:
    const nb::object function_;
};

void make(LineRecorder* self, bool resident, nb::object meter, bool recursion_apart, nb::object listener) {
    std::shared_ptr<Meter> read = meter.is_none() ? nullptr : std::make_shared<PythonMeter>(std::move(meter));
    std::shared_ptr<Listener> hear =
        listener.is_none() ? nullptr : std::make_shared<PythonListener>(std::move(listener));
    new (self) LineRecorder(resident, recursion_apart, std::move(read), std::move(hear));
}

// For the interpreter's collector: a meter or a listener may lead back to its recorder.
int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (!nb::inst_ready(self)) return 0;
    const LineRecorder& recorder = *nb::inst_ptr<LineRecorder>(self);
    if (const auto* meter = static_cast<const PythonMeter*>(recorder.meter())) Py_VISIT(meter->function());
    if (const auto* listener = static_cast<const PythonListener*>(recorder.listener())) Py_VISIT(listener->function());
    return 0;
}

int clear_told(PyObject* self) {
    if (nb::inst_ready(self)) nb::inst_ptr<LineRecorder>(self)->drop_told();
    return 0;
}

PyType_Slot g_recorder_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                  {Py_tp_clear, reinterpret_cast<void*>(clear_told)},
                                  {0, nullptr}};

void set_active(LineRecorder& recorder, bool active, bool here) {
    if (!recorder.set_active(active, here)) throw nb::python_error();
}

nb::tuple begun(LineRecorder& recorder, std::uint32_t number) {
    const Group& group = recorder.group(number);
    return nb::make_tuple(group.figures.calls, group.figures.resident_first_bytes);
}

void check_code(nb::handle code) {
    if (!PyCode_Check(code.ptr())) throw nb::type_error("a code object is needed");
}

// Events from a trace function in Python: the frame object identifies the activation.
void python_line(nb::handle frame, nb::handle code, std::int32_t line) {
    check_code(code);
    if (!tell({What::line, frame.ptr(), code.ptr(), line})) throw nb::python_error();
    on_line(frame.ptr(), code.ptr(), line);
}

void python_resume(nb::handle frame, nb::handle code, std::int32_t line) {
    check_code(code);
    if (!tell({What::resume, frame.ptr(), code.ptr(), line})) throw nb::python_error();
    on_resume(frame.ptr(), code.ptr(), line);
}

void python_exit(nb::handle frame, nb::handle code, bool suspends) {
    check_code(code);
    if (!tell({suspends ? What::suspend : What::exit, frame.ptr(), code.ptr(), 0})) throw nb::python_error();
    on_exit(frame.ptr(), suspends);
}

// A tuple for each line that ran; the order of the fields stands in _core.pyi.
nb::list rows_of(const FunctionFigures& function) {
    nb::list out;
    for (std::size_t i = 0; i < function.line_count; ++i) {
        const LineFigure& f = function.lines()[i];
        if (f.calls == 0 && f.resident_end_bytes == 0 && f.allocated_bytes == 0) continue;
        const auto line = function.first_line + static_cast<std::int64_t>(i);
        out.append(nb::make_tuple(line, f.calls, f.kept_bytes, f.allocated_bytes, f.peak_bytes, f.resident_bytes,
                                  f.resident_start_bytes, f.resident_end_bytes, f.resident_highest_bytes));
    }
    return out;
}

nb::list figures(LineRecorder& recorder, std::uint32_t number) { return rows_of(recorder.group(number).figures); }

std::uint32_t add_group(LineRecorder& recorder, std::int32_t first_line, std::int32_t last_line, nb::bytes label) {
    return recorder.add_group(first_line, last_line, {label.c_str(), label.size()});
}

// Of a file that a child process has kept its figures in: label, first and last line, calls, resident at the first, and
// the lines, of each function.
nb::list functions_in(nb::bytes contents) {
    nb::list out;
    FigureRoom::each_in({contents.c_str(), contents.size()}, [&out](const FunctionFigures& function) {
        const std::int64_t last = function.first_line + std::int64_t{function.line_count} - 1;
        const std::string_view label = function.label();
        out.append(nb::make_tuple(nb::bytes(label.data(), label.size()), function.first_line, last, function.calls,
                                  function.resident_first_bytes, rows_of(function)));
    });
    return out;
}

void watch(LineRecorder& recorder, nb::handle code, std::uint32_t group, bool nested) {
    check_code(code);
    recorder.watch(code.ptr(), group, nested);
}

}  // namespace

void add_to(nb::module_& module) {
    nb::class_<LineRecorder>(module, "LineRecorder", nb::type_slots(g_recorder_slots))
        .def("__init__", &make, nb::kw_only(), "resident"_a, "meter"_a.none() = nb::none(), "recursion_apart"_a = false,
             "listener"_a.none() = nb::none())
        .def("add_group", &add_group, "first_line"_a, "last_line"_a, "label"_a = nb::bytes("", 0))
        .def("keep_in", &LineRecorder::keep_in, "path"_a)
        .def("watch", &watch, "code"_a, "group"_a, nb::kw_only(), "nested"_a = false)
        .def("set_active", &set_active, "active"_a, nb::kw_only(), "here"_a = false)
        .def("clear", &LineRecorder::clear)
        .def("figures", &figures, "group"_a)
        .def("begun", &begun, "group"_a);
    module.def("lines_on_line", &python_line, "frame"_a, "code"_a, "line"_a);
    module.def("lines_on_resume", &python_resume, "frame"_a, "code"_a, "line"_a);
    module.def("lines_on_exit", &python_exit, "frame"_a, "code"_a, "suspends"_a);
    module.def("lines_functions_in", &functions_in, "contents"_a);
    module.def("lines_self_check", [] {
        const std::string wrong = self_check();
        if (!wrong.empty()) throw std::runtime_error(wrong);
    });
#if PY_VERSION_HEX >= 0x030c0000
    module.def("lines_callbacks", [] {
        PyObject* all = monitoring_callbacks();
        if (all == nullptr) throw nb::python_error();
        return nb::steal<nb::dict>(all);
    });
#else
    static constexpr auto raise = [](int status) {
        if (status < 0) throw nb::python_error();
    };
    module.def("lines_attach_here", [] { raise(attach_here()); });
    module.def("lines_detach_here", &detach_here);
    module.def("lines_attach_all", [] { raise(attach_all()); });
    module.def("lines_join", [] { raise(join()); });
    module.def("lines_detach_all", &detach_all);
    module.def("lines_displaced", &displaced);
#endif
}

}  // namespace hiwater::lines
