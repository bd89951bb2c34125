#include "devices/device_watch.h"

#include <Python.h>
#include <unistd.h>

#include <atomic>
#include <iterator>

#include "session/main_thread_call.h"
#include "stacks/thread_state.h"

namespace hiwater::device_watch {

namespace {

constexpr std::uint64_t kSpacingNs = 200'000'000;
constexpr std::uint64_t kSoonNs = 20'000'000;

std::atomic<bool> g_wanted{false};
std::atomic<std::uint64_t> g_spacing_ns{kSpacingNs};
std::uint64_t g_last_ns = 0;  // the sampler's
PyObject* g_callback = nullptr;
pid_t g_owner = 0;
PyObject* g_names[std::size(kLibraries)] = {};

int call_if_loaded();
MainThreadCall g_call{call_if_loaded};

bool is_one_loaded() {
    BusyGuard busy;  // the look-up does not allocate; if it ever does, that must not be counted
    PyObject* modules = PyImport_GetModuleDict();
    for (PyObject* name : g_names)
        if (name != nullptr && PyDict_Check(modules) && PyDict_GetItemWithError(modules, name) != nullptr) return true;
    return false;
}

// Runs on the main thread, between two instructions of the program. The callback handles hiwater's errors itself. What
// it raises belongs to the program, such as a KeyboardInterrupt that came meanwhile.
int call_if_loaded() {
    if (g_callback == nullptr || g_owner != ::getpid() || !is_one_loaded()) return 0;
    PyObject* callback = g_callback;
    Py_INCREF(callback);
    PyObject* done = PyObject_CallNoArgs(callback);
    Py_DECREF(callback);
    if (done == nullptr) return -1;
    if (done == Py_True) g_wanted.store(false, std::memory_order_release);
    g_spacing_ns.store(done == Py_None ? kSoonNs : kSpacingNs, std::memory_order_relaxed);
    Py_DECREF(done);
    return 0;
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
    g_call.begin();
    g_spacing_ns.store(kSpacingNs, std::memory_order_relaxed);
    g_wanted.store(g_callback != nullptr, std::memory_order_release);
}

void request_if_due(std::uint64_t now_ns) noexcept {
    if (!g_wanted.load(std::memory_order_acquire)) return;
    // The difference of a time that went back is large.
    if (now_ns - g_last_ns < g_spacing_ns.load(std::memory_order_relaxed)) return;
    g_last_ns = now_ns;
    g_call.request();
}

}  // namespace hiwater::device_watch
