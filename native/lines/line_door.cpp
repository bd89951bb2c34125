#include "line_door.h"

#include <nanobind/stl/string.h>

#include <stdexcept>

#include "line_events.h"
#include "line_recorder.h"

namespace hiwater::lines {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// A tuple for each line that ran; the order of the fields stands in _core.pyi.
nb::list figures(LineRecorder& recorder, std::uint32_t number) {
    nb::list out;
    const Group& group = recorder.group(number);
    for (std::size_t i = 0; i < group.figures.size(); ++i) {
        const LineFigure& f = group.figures[i];
        if (f.calls == 0 && f.resident_end_bytes == 0 && f.allocated_bytes == 0) continue;
        const auto line = group.first_line + static_cast<std::int64_t>(i);
        out.append(nb::make_tuple(line, f.calls, f.kept_bytes, f.allocated_bytes, f.peak_bytes, f.resident_bytes,
                                  f.resident_start_bytes, f.resident_end_bytes, f.resident_highest_bytes));
    }
    return out;
}

void watch(LineRecorder& recorder, nb::handle code, std::uint32_t group, bool nested) {
    if (!PyCode_Check(code.ptr())) throw nb::type_error("a code object is needed");
    recorder.watch(code.ptr(), group, nested);
}

}  // namespace

void add_to(nb::module_& module) {
    nb::class_<LineRecorder>(module, "LineRecorder")
        .def(nb::init<bool>(), nb::kw_only(), "resident"_a)
        .def("add_group", &LineRecorder::add_group, "first_line"_a, "last_line"_a)
        .def("watch", &watch, "code"_a, "group"_a, nb::kw_only(), "nested"_a = false)
        .def("set_active", &LineRecorder::set_active, "active"_a)
        .def("clear", &LineRecorder::clear)
        .def("figures", &figures, "group"_a);
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
