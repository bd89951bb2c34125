// The module's functions for Python. What each promises stands in src/hiwater/_core.pyi. Longer than 400 lines, as the
// list of them is one.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "module.h"

#include "devices/device_watch.h"
#include "holders/requests.h"
#include "interpose/allocators.h"
#include "interpose/exit_callback.h"
#include "interpose/hooks.h"
#include "interpose/python_hooks.h"
#include "interpose/python_threads.h"
#include "interpose/slots.h"
#include "accounting/thread_heap.h"
#include "base/process.h"
#include "capture/placement.h"
#include "session/children.h"
#include "session/fatal_signals.h"
#include "session/recorder.h"
#include "stacks/recursion.h"
#include "session/sampler.h"

namespace nb = nanobind;
using namespace nb::literals;
using hiwater::EngineFault;
using hiwater::raise_os_error;
using hiwater::recorder;

namespace hiwater {

void raise_os_error(int error, const std::string& path) {
    errno = error;
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    throw nb::python_error();
}

}  // namespace hiwater

namespace {

std::map<std::string, std::string> g_shortcomings;  // of the last recording

// As builtins.compile() with dont_inherit, without what that does first and `python FILE` does not: making every type
// of the syntax trees, and an audit event.
nb::object compile_source(const nb::object& source, const nb::str& file) {
    PyCompilerFlags flags = {0, PY_MINOR_VERSION};
    const char* text = nullptr;
    if (PyUnicode_Check(source.ptr())) {
        flags.cf_flags = PyCF_SOURCE_IS_UTF8 | PyCF_IGNORE_COOKIE;
        text = PyUnicode_AsUTF8(source.ptr());
    } else {
        text = PyBytes_AsString(source.ptr());
    }
    PyObject* code = text == nullptr ? nullptr : Py_CompileStringObject(text, file.ptr(), Py_file_input, &flags, -1);
    if (code == nullptr) throw nb::python_error();
    return nb::steal(code);
}

int g_heap_users = 0;  // of the heap's meters
// The heap's two peaks are reset together. The one that a call does not return is kept for a later call. Scopes call
// under one lock.
std::int64_t g_kept_peaks[2] = {};

void note_shortcoming(const char* fact, const std::string& what) {
    hiwater::BusyGuard busy;
    g_shortcomings[fact] = what;
    recorder().note_fact(fact, what);
}

int begin(const hiwater::StartOptions& options) {
    hiwater::interpose::watch_forks();
    if (int error = recorder().start(options)) return error;
    const std::string missed = hiwater::interpose::install_hooks();
    hiwater::interpose::install_python_hooks();
    hiwater::children.begin(options, recorder().path().c_str());
    if (options.only_counters) return 0;
    hiwater::interpose::find_os_abort();
    hiwater::fatal_signals::begin();
    hiwater::interpose::name_python_threads(true);
    g_shortcomings.clear();
    if (!missed.empty()) note_shortcoming("calls_not_recorded", missed);
    if (const std::string allocators = hiwater::interpose::allocators_in_words(); !allocators.empty())
        recorder().note_fact("allocator", allocators);
    if (!hiwater::sampler::start()) {
        recorder().lock().allow_bias();
        note_shortcoming(
            "resident_not_sampled",
            "no thread could be made to sample resident memory (see ulimit -u): there is no timeline of it");
    }
    return 0;
}

void end(int exit_code) {
    hiwater::children.end();
    hiwater::sampler::stop();
    hiwater::holder_requests::abandon();
    if (const std::string& failure = recorder().last_words_failure(); !failure.empty())
        g_shortcomings[hiwater::kLastWordsNotWritten] = failure;
    if (const auto [count, error] = hiwater::children.refused(); count != 0)
        g_shortcomings["children_not_recorded"] = std::to_string(count) +
                                                  (count == 1 ? " child process" : " child processes") +
                                                  " could not be recorded (" + ::strerror(error) + ")";
    recorder().note_collections(hw_full_collections());  // since the last call
    if (!recorder().is_of_small_child()) recorder().take_residency_snapshot();
    hiwater::interpose::name_python_threads();
    hiwater::interpose::remove_python_hooks();
    hiwater::fatal_signals::end();
    hiwater::interpose::remove_hooks(exit_code != -1);
    recorder().stop(exit_code, g_heap_users > 0, hiwater::interpose::allocators_in_words().empty());
}

void begin_counting() {
    hiwater::StartOptions options;
    options.only_counters = true;
    if (int error = begin(options)) raise_os_error(error, "memory for counting");
    recorder().read_and_reset_heap_peak();
}

std::string start(const std::string& path, const std::map<std::string, std::string>& facts,
                  const std::string& internal_prefix, std::uint64_t sample_bytes, std::uint64_t sample_seed,
                  const std::string& cgroup_usage, const std::vector<std::string>& cgroup_limits,
                  const std::string& own_script, const std::vector<std::pair<std::string, unsigned>>& owner_rules,
                  const std::string& last_words, std::uint64_t interval_ns, unsigned mode,
                  const std::string& run_variable, const std::string& run_folder, bool residency_snapshots,
                  std::pair<std::int64_t, std::int64_t> code_bytes, bool native_frames, unsigned check_each) {
    const bool counting = recorder().counts_only();
    if (hiwater::recording() && !counting)
        throw EngineFault("a recording is in progress already: stop it before another is started");
    if (counting) end(-1);
    std::vector<hiwater::OwnerRule> rules;
    for (const auto& [pattern, owner] : owner_rules)
        rules.push_back({pattern, static_cast<hiwater::capture::Owner>(owner)});
    hiwater::unwind::Scope native;
    if (native_frames) {
        if (!hiwater::unwind::prepare())
            throw EngineFault("native frames need an x86-64 processor and glibc 2.35 or later");
        const auto code_of = [](const void* function) {
            const hiwater::interpose::CodeRange range = hiwater::interpose::code_around(function);
            return hiwater::unwind::Range{range.start, range.end};
        };
        native = {true, code_of(::dlsym(RTLD_DEFAULT, "PyObject_Malloc")),
                  code_of(reinterpret_cast<const void*>(&begin)), check_each};
    }
    if (int error = begin({path, static_cast<mode_t>(mode), false, facts, sample_bytes, sample_seed, cgroup_usage,
                           cgroup_limits, internal_prefix, own_script, rules, last_words, interval_ns, run_variable,
                           run_folder, residency_snapshots, code_bytes.first, code_bytes.second, native})) {
        if (counting) begin_counting();
        raise_os_error(error, path);
    }
    if (counting) recorder().read_and_reset_heap_peak();
    return recorder().path();
}

void stop(std::optional<int> exit_code) {
    if (!hiwater::recording() || recorder().counts_only()) return;
    end(exit_code.value_or(-1));
    if (g_heap_users > 0) begin_counting();
}

void heap_open() {
    if (g_heap_users == 0) {
        g_kept_peaks[0] = g_kept_peaks[1] = 0;
        if (hiwater::recording()) {
            recorder().read_and_reset_heap_peak();
        } else {
            begin_counting();
        }
    }
    ++g_heap_users;
}

// The child of a fork is recorded no more (native/README.md): the counters begin again.
void heap_continue_in_child() {
    if (g_heap_users > 0 && !hiwater::recording()) begin_counting();
}

void heap_close() {
    if (g_heap_users == 0) throw EngineFault("the heap's meters are not open");
    if (--g_heap_users > 0) return;
    recorder().stop_peak_reading();
    if (recorder().counts_only()) end(-1);
}

nb::tuple heap_now() {
    const hiwater::Recorder::Heap h = recorder().heap_now();
    return nb::make_tuple(h.live_bytes, h.live_blocks, h.python_bytes, h.native_bytes, h.mapping_bytes, h.shared_bytes,
                          hiwater::thread_heap.live_bytes);
}

nb::tuple heap_totals() {
    const hiwater::Accounts::Figures process = recorder().heap_totals();
    return nb::make_tuple(process.bytes, process.blocks, hiwater::thread_heap.allocated_bytes,
                          hiwater::thread_heap.allocations);
}

bool heap_is_sampled() noexcept { return hiwater::recording() && hiwater::sampled(); }

nb::tuple read_and_reset_heap_peak(unsigned which) {
    if (which > 1) throw nb::index_error("the heap has two peaks: 0, of everything, and 1, of Python's allocators");
    const hiwater::Accounts::HeapPeak highest = recorder().read_and_reset_heap_peak();
    const hiwater::Recorder::Heap now = recorder().heap_now();
    g_kept_peaks[0] = std::max(g_kept_peaks[0], highest.total_bytes);
    g_kept_peaks[1] = std::max(g_kept_peaks[1], highest.python_bytes);
    const std::int64_t live = which == 0 ? now.live_bytes : now.python_bytes;
    const std::int64_t peak = std::max(live, g_kept_peaks[which]);
    g_kept_peaks[which] = 0;
    return nb::make_tuple(live, peak, !heap_is_sampled());
}

nb::tuple read_and_reset_thread_heap_peak() {
    const std::int64_t highest = hiwater::thread_heap.read_and_reset_peak();
    return nb::make_tuple(hiwater::thread_heap.live_bytes, highest, !heap_is_sampled());
}

void snapshot(const std::string& path) {
    if (!hiwater::recording() || recorder().counts_only())
        throw EngineFault("nothing is being recorded: start a recording first");
    hiwater::interpose::name_python_threads();
    int error = 0;
    {
        nb::gil_scoped_release release;  // the program's other threads go on
        error = recorder().snapshot(path.c_str());
    }
    if (error != 0) raise_os_error(error, path);
}

nb::object read_ending(const std::string& path) {
    hiwater::capture::Ending found{};
    if (!hiwater::capture::read_ending(path.c_str(), &found)) return nb::none();
    return nb::make_tuple(found.pid, found.ended_unix_ns, found.resident_peak_bytes, found.used_bytes,
                          found.limit_bytes, found.is_orderly, found.is_of_this_boot, found.signal);
}

// Names that are not UTF-8 are the program's mistake, and not worth an exception there.
std::string_view text_of(nb::handle name) {
    Py_ssize_t bytes = 0;
    const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), &bytes);
    if (text == nullptr) PyErr_Clear();
    return text == nullptr ? std::string_view("?") : std::string_view(text, static_cast<std::size_t>(bytes));
}

nb::tuple window_peak(std::uint64_t start_ns) {
    const hiwater::Accounts::Figures highest = recorder().window_peak(start_ns);
    return nb::make_tuple(highest.bytes, highest.blocks);
}

void write_window(const std::string& path, std::uint64_t start_ns) {
    hiwater::interpose::name_python_threads();
    if (int error = recorder().write_window(path.c_str(), start_ns)) raise_os_error(error, path);
}

nb::dict top_line(const hiwater::TopLine& top) {
    constexpr const char* groups[] = {"line", "waited", "import", "other"};
    nb::dict out;
    out["group"] = groups[static_cast<std::size_t>(top.group)];
    out["file"] = top.file;
    out["line"] = top.line;
    out["function"] = top.function;
    out["bytes"] = top.bytes;
    out["untouched_bytes"] = top.untouched_bytes;
    out["imports_bytes"] = top.imports_bytes;
    out["other_bytes"] = top.other_bytes;
    out["all_untouched_bytes"] = top.all_untouched_bytes;
    return out;
}

nb::dict refusal(const hiwater::Refusal& refused) {
    nb::dict out;
    out["count"] = refused.count;
    out["bytes"] = refused.bytes;
    out["file"] = refused.file;
    out["line"] = refused.line;
    out["function"] = refused.function;
    return out;
}

nb::dict summary() {
    const hiwater::Summary s = recorder().summary();
    nb::dict out;
    out["path"] = s.path;
    out["peak_bytes"] = s.peak_bytes;
    out["peak_blocks"] = s.peak_blocks;
    out["live_bytes"] = s.live_bytes;
    out["program_peak_bytes"] = s.program_peak_bytes;
    out["resident_exact"] = s.resident_exact;
    out["resident_error_bytes"] = s.resident_error_bytes;
    out["overhead_bytes"] = s.overhead_bytes;
    out["lost_events"] = s.lost_events;
    out["file_fate"] = s.fate;
    out["is_lost"] = s.is_lost;
    out["shortcomings"] = g_shortcomings;
    out["sample_bytes"] = s.sample_bytes;
    out["standard_error_bytes"] = s.standard_error_bytes;
    out["stop_reason"] = s.stop_reason.empty() ? nb::none() : nb::object(nb::str(s.stop_reason.c_str()));
    out["top_line"] = s.top.is_known ? nb::object(top_line(s.top)) : nb::none();
    out["refused"] = s.refused.count != 0 ? nb::object(refusal(s.refused)) : nb::none();
    return out;
}

std::int32_t add_device(const std::string& name, const std::string& backend, const std::string& source,
                        std::int64_t limit_bytes) {
    std::int32_t number = -1;
    recorder().on_devices([&](hiwater::Devices& devices, std::uint64_t) {
        number = static_cast<std::int32_t>(devices.add({name, backend, source, limit_bytes}));
    });
    return number;
}

void sample_device(std::uint32_t device, std::int64_t allocated, std::int64_t allocated_peak, std::int64_t reserved,
                   std::int64_t reserved_peak, std::int64_t used, bool exact, const std::string& note) {
    recorder().on_devices([&](hiwater::Devices& devices, std::uint64_t now) {
        devices.sample(device, {allocated, allocated_peak, reserved, reserved_peak, used, exact, note}, now);
    });
}

void note_device_terms(std::uint32_t device, const std::vector<std::pair<std::string, std::int64_t>>& terms) {
    recorder().on_devices(
        [&](hiwater::Devices& devices, std::uint64_t now) { devices.note_terms(device, terms, now); });
}

void self_check() {
    const std::string wrong = recorder().self_check();
    if (!wrong.empty()) throw EngineFault(wrong);
}

// The version and the build of the interpreter whose structs we read.
#ifdef Py_DEBUG
constexpr const char* kBuild = "debug";
#else
constexpr const char* kBuild = "release";
#endif
const std::string kBuiltFor = std::to_string(PY_MAJOR_VERSION) + "." + std::to_string(PY_MINOR_VERSION) + " " + kBuild;

// A program may leave through the C library's exit() without the interpreter's consent.
[[gnu::destructor]] void at_library_exit() {
    if (hiwater::recording()) recorder().note_exit({hiwater::capture::EndedBy::unknown});
}

}  // namespace

NB_MODULE(_core, m) {
    hiwater::Recorder::make();
    nb::exception<EngineFault>(m, "EngineFault", PyExc_RuntimeError);
    m.attr("BUILT_FOR") = kBuiltFor;
    m.attr("PAGE_BYTES") = hiwater::kPage;
    m.def(
        "call_at_the_bottom",
        [](nb::handle callable, nb::handle arguments) {
            PyObject* const result = hiwater::recursion::call_at_the_bottom(callable.ptr(), arguments.ptr());
            if (result == nullptr) throw nb::python_error();
            return nb::steal(result);
        },
        "callable"_a, "arguments"_a);
    m.def("compile_source", &compile_source, "source"_a, "file"_a);
    m.def("start", &start, "path"_a, nb::kw_only(), "facts"_a, "internal_prefix"_a, "sample_bytes"_a = 0,
          "sample_seed"_a = 0, "cgroup_usage"_a = "", "cgroup_limits"_a = std::vector<std::string>(),
          "own_script"_a = "", "owner_rules"_a = std::vector<std::pair<std::string, unsigned>>(), "last_words"_a = "",
          "interval_ns"_a = 0, "mode"_a = hiwater::capture::kPrivate, "run_variable"_a = "", "run_folder"_a = "",
          "residency_snapshots"_a = true, "code_bytes"_a = std::pair<std::int64_t, std::int64_t>(),
          "native_frames"_a = false, "check_each"_a = 0);
    m.def("enter_own_work", [] { recorder().enter_own_work(); });
    m.def("leave_own_work", [] { recorder().leave_own_work(); });
    m.def("stop", &stop, "exit_code"_a = nb::none());
    m.def("is_complete", [] { return recorder().is_complete(); });
    m.def("is_recording", [] { return hiwater::recording() && !recorder().counts_only(); });
    m.def("is_kept_in_memory", [] { return recorder().is_kept_in_memory(); });
    m.def("snapshot", &snapshot, "path"_a);
    m.def("end_intervals", [] { recorder().end_intervals(); });
    m.def("add_marker", [](nb::handle name) {
        if (hiwater::recording()) recorder().add_marker(text_of(name));
    });
    m.def("begin_scope", [](nb::handle name) {
        return hiwater::recording() ? recorder().begin_scope(text_of(name)) : std::uint64_t{0};
    });
    m.def("end_scope", [](std::uint64_t scope) { recorder().end_scope(scope); });
    m.def("note_loaded_code", [](std::int64_t bytes) { recorder().note_loaded_code(bytes); }, "resident_bytes"_a);
    m.def("note_fact", [](nb::handle name, nb::handle value) {
        hiwater::BusyGuard busy;
        recorder().note_fact(std::string(text_of(name)), std::string(text_of(value)));
    });
    m.def("summary", &summary);
    m.def("read_ending", &read_ending, "path"_a);
    m.def("begin_window", [] { return recorder().begin_window(); });
    m.def("window_peak", &window_peak, "start_ns"_a);
    m.def("write_window", &write_window, "path"_a, "start_ns"_a);
    m.def("counters", [] { return recorder().counters(); });
    m.def("self_check", &self_check);
    m.def(
        "on_exit", [](nb::object callback) { hiwater::interpose::set_exit_callback(callback.ptr()); },
        "callback"_a.none());
    nb::list libraries;
    for (const char* name : hiwater::device_watch::kLibraries) libraries.append(nb::str(name));
    m.attr("DEVICE_LIBRARIES") = nb::tuple(libraries);
    m.def(
        "on_device_library", [](nb::object callback) { hiwater::device_watch::set_callback(callback.ptr()); },
        "callback"_a.none());
    m.def("add_device", &add_device, "name"_a, "backend"_a, "source"_a, "limit_bytes"_a);
    m.def("sample_device", &sample_device, "device"_a, "allocated"_a, "allocated_peak"_a, "reserved"_a,
          "reserved_peak"_a, "used"_a, "exact"_a, "note"_a);
    m.def("note_device_terms", &note_device_terms, "device"_a, "terms"_a);
    m.def("heap_is_sampled", &heap_is_sampled);
    m.def("heap_open", &heap_open);
    m.def("heap_continue_in_child", &heap_continue_in_child);
    m.def("heap_close", &heap_close);
    m.def("heap_now", &heap_now);
    m.def("heap_totals", &heap_totals);
    m.def("heap_read_and_reset", &read_and_reset_heap_peak, "which"_a);
    m.def("thread_heap_read_and_reset", &read_and_reset_thread_heap_peak);
    m.def(
        "note_resident_peak", [](std::int64_t bytes) { recorder().note_resident_peak_before_reset(bytes); }, "bytes"_a);
    hiwater::add_system_functions(m);
}
