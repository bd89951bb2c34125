#include "devices/device_watch.h"

#include <Python.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <iterator>

#include "session/recorder.h"
#include "stacks/thread_state.h"

namespace hiwater::device_watch {

namespace {

constexpr std::uint64_t kSpacingNs = 200'000'000;

std::atomic<bool> g_wanted{false};
std::atomic<bool> g_asked{false};  // and not answered yet: the main thread may be in one long call
// Before 3.13 the main thread runs pending calls of other threads only when it releases the GIL: there it must add the call itself.
constexpr bool kHeardFromOtherThreads = PY_VERSION_HEX >= 0x030D0000;
std::atomic<bool> g_due{false};
std::uint64_t g_next_ns = 0;  // the sampler's
PyObject* g_callback = nullptr;
pid_t g_owner = 0;
PyObject* g_names[std::size(kLibraries)] = {};

bool is_one_loaded() {
    BusyGuard busy;  // the look-up does not allocate; if it ever does, that must not be counted
    PyObject* modules = PyImport_GetModuleDict();
    for (PyObject* name : g_names)
        if (name != nullptr && PyDict_Check(modules) && PyDict_GetItemWithError(modules, name) != nullptr) return true;
    return false;
}

// Runs on the main thread, between two instructions of the program. The callback handles hiwater's errors itself. What it raises belongs
// to the program, such as a KeyboardInterrupt that came meanwhile.
int call_if_loaded(void*) {
    g_asked.store(false, std::memory_order_release);
    if (g_callback == nullptr || g_owner != ::getpid() || !is_one_loaded()) return 0;
    PyObject* callback = g_callback;
    Py_INCREF(callback);
    PyObject* done = PyObject_CallNoArgs(callback);
    Py_DECREF(callback);
    if (done == nullptr) return -1;
    if (done == Py_True) g_wanted.store(false, std::memory_order_release);
    Py_DECREF(done);
    return 0;
}

void ask() noexcept {
    if (Py_AddPendingCall(call_if_loaded, nullptr) != 0) g_asked.store(false, std::memory_order_release);  // its queue is full
}

}  // namespace

void set_callback(void* callback) noexcept {
    for (std::size_t i = 0; i < std::size(kLibraries); ++i)
        if (g_names[i] == nullptr) g_names[i] = PyUnicode_InternFromString(kLibraries[i]);
    PyObject* old = g_callback;
    g_callback = callback == Py_None ? nullptr : static_cast<PyObject*>(callback);
    g_owner = ::getpid();
    Py_XINCREF(g_callback);
    Py_XDECREF(old);
    g_asked.store(false, std::memory_order_release);
    g_wanted.store(g_callback != nullptr, std::memory_order_release);
}

void ask_if_due(std::uint64_t now_ns) noexcept {
    if (!g_wanted.load(std::memory_order_acquire) || (now_ns < g_next_ns && now_ns + kSpacingNs >= g_next_ns)) return;
    g_next_ns = now_ns + kSpacingNs;
    if (g_due.load(std::memory_order_acquire)) return Recorder::instance().request_attention();  // it has not come by us yet
    if (g_asked.exchange(true, std::memory_order_acq_rel)) return;
    if constexpr (kHeardFromOtherThreads) {
        ask();
    } else {
        g_due.store(true, std::memory_order_release);
        Recorder::instance().request_attention();
    }
}

void ask_from_here() noexcept {
    if (!g_due.load(std::memory_order_acquire) || ::syscall(SYS_gettid) != ::getpid()) return;
    if (g_due.exchange(false, std::memory_order_acq_rel)) ask();
}

}  // namespace hiwater::device_watch
