// The engine that records Python's objects alone: what stands in the place of the parts that it does not have. It finds
// forks by handlers, of which one is the interpreter's, and every other part says that there is nothing.
#include <Python.h>

#include "module.h"

#include <pthread.h>

#include "capture/file_guard.h"
#include "holders/requests.h"
#include "interpose/allocators.h"
#include "interpose/hooks.h"
#include "interpose/python_tables.h"
#include "interpose/slots.h"
#include "session/children.h"
#include "session/fatal_signals.h"
#include "session/recorder.h"
#include "session/sampler.h"

namespace nb = nanobind;

namespace hiwater {

constexpr const char* kObjectsOnly =
    "objects of Python alone were recorded: this engine sees no memory of native code, no mappings, no resident memory "
    "and no child processes";

namespace interpose {

namespace {

void after_fork_in_child() noexcept {
    const ErrnoKept kept;
    sampler::forget_in_child();
    recorder().become_unrecorded_child();
}

bool g_is_paused = false;

PyObject* before_fork(PyObject*, PyObject*) {
    g_is_paused = recording() && sampler::pause_for_fork();
    Py_RETURN_NONE;
}

PyObject* after_fork(PyObject*, PyObject*) {
    if (std::exchange(g_is_paused, false)) sampler::note_forked();
    Py_RETURN_NONE;
}

// CPython warns who forks with a second thread. No thread ends in a fork handler of the C library, as a signal's
// handler may fork: the interpreter's own are called by os.fork() alone.
void pause_for_forks() {
    static PyMethodDef before{"before_fork", before_fork, METH_NOARGS, nullptr},
        after{"after_fork", after_fork, METH_NOARGS, nullptr};
    const nb::object arguments[] = {nb::steal(PyCFunction_New(&before, nullptr)),
                                    nb::steal(PyCFunction_New(&after, nullptr))};
    const nb::object os = nb::module_::import_("os");
    if (!nb::hasattr(os, "register_at_fork")) return;
    os.attr("register_at_fork")(nb::arg("before") = arguments[0], nb::arg("after_in_parent") = arguments[1]);
}

}  // namespace

std::string install_hooks() { return kObjectsOnly; }
void remove_hooks(bool) noexcept {}
bool sees_malloc() noexcept { return false; }

void watch_forks() noexcept {
    static const bool once = [] {
        const BusyGuard busy;
        try {
            pause_for_forks();
        } catch (const std::exception&) {
            PyErr_Clear();  // the warning comes, and nothing else
        }
        return ::pthread_atfork(nullptr, nullptr, after_fork_in_child) == 0;
    }();
    (void)once;
}

void install_arenas() {}
void remove_arenas() noexcept {}
bool is_malloc_replaced() noexcept { return false; }
std::string allocators_in_words() { return {}; }
CodeRange code_around(const void*) noexcept { return {}; }
bool in_interpreter(const void*) noexcept { return true; }

}  // namespace interpose

// --- the capture's file: who truncates it ends the program

namespace capture::file_guard {

void add(void*, std::size_t) noexcept {}
void remove(const void*) noexcept {}
void begin(void (*)(), OnDeath) noexcept {}
void end() noexcept {}
void end_in_child() noexcept {}
bool is_truncated() noexcept { return false; }
void cut() noexcept {}
bool has_page(const void*) noexcept { return true; }
OwnFaults::OwnFaults() noexcept = default;
OwnFaults::~OwnFaults() = default;

}  // namespace capture::file_guard

// --- ends of the process, and its children

namespace fatal_signals {

void begin() noexcept {}
void end() noexcept {}
void leave() noexcept {}
void end_in_child() noexcept {}
void note(int, const siginfo_t&, const void*) noexcept {}
void give_stack() noexcept {}
void take_stack_back() noexcept {}

}  // namespace fatal_signals

void end_as_main_thread() noexcept {}

void Children::begin(const StartOptions&, const char*) {}
const StartOptions* Children::begin_in_fork() { return nullptr; }
void Children::note_refused(int) const noexcept {}
bool Children::is_row_enough(std::int64_t) const noexcept { return false; }
void Children::note_ended(const Ended&, const char*) noexcept {}

// --- native stacks, blocks of malloc, and where memory is resident

namespace unwind {

std::atomic<std::uint32_t> g_unloadings{0};
bool prepare() noexcept { return false; }
void Unwinder::begin(const Scope&) noexcept {}
void Unwinder::forget() noexcept {}
void Unwinder::forget_in_child() noexcept {}

}  // namespace unwind

void NativeFrames::begin(capture::CaptureFile& file, const unwind::Scope&) {
    modules_.attach(file, capture::Table::modules);
}

std::uint32_t Recorder::account_of_native_frames(Thread& t, capture::Kind kind) {
    return opened_account(python_node(t), kind);
}

std::uint32_t Recorder::account_of_unknown_walk(Thread&, capture::Kind, const NativeStack::Wanted&) { return 0; }
std::uint32_t Recorder::charged_node(Thread& t) { return python_node(t); }
void Recorder::forget_freed() {}

void MappingAccounts::reset() noexcept {}
bool MappingAccounts::shows_pages(const Piece&) const { return false; }

namespace residency {

bool take_snapshot(Breakdown*, Ranges*) noexcept { return false; }
const char* name_of(Part) noexcept { return ""; }

}  // namespace residency

namespace holder_requests {

void consider() noexcept {}
void abandon() noexcept {}
void forget_in_child() noexcept {}

}  // namespace holder_requests

// --- the module's functions

namespace {

[[noreturn]] void refuse(const char* what) {
    throw EngineFault(std::string(what) + " cannot be had from an engine that records Python's objects alone");
}

}  // namespace

void add_system_functions(nb::module_& m) {
    m.attr("MISSES") = kObjectsOnly;
    m.def("limit_address_space", [](std::uint64_t) { refuse("a limit of address space"); });
    m.def("set_last_lines", [](nb::handle) {});
    m.def("write_last_lines", [] { return false; });
    m.def("search_holders", [](nb::args, nb::kwargs) { refuse("holders of objects"); });
    m.def("residency_snapshot", [] { refuse("where memory is resident"); });
    m.def("touched_bytes", [](std::uintptr_t, std::uint64_t) { return 0; });
    m.def("resident_read_and_reset", [](nb::args) { return nb::none(); });
    m.def("resident_watch_start", [](std::uint64_t) { refuse("samples of resident memory"); });
    for (const char* name : {"resident_watch_stop", "resident_watch_pause", "resident_watch_resume"})
        m.def(name, [] {});
    for (const char* name : {"resident_watch_peak", "resident_watch_read_and_reset"}) m.def(name, [] { return 0; });
}

}  // namespace hiwater
