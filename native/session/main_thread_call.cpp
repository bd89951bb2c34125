#include "session/main_thread_call.h"

#include <Python.h>

#include "base/process.h"
#include "session/recorder.h"

namespace hiwater {

namespace {

// Before 3.13 the main thread runs pending calls of other threads only when it releases the GIL: there it must add the
// call itself.
constexpr bool kHeardFromOtherThreads = PY_VERSION_HEX >= 0x030D0000;

}  // namespace

constinit MainThreadCall* MainThreadCall::first_ = nullptr;
constinit std::atomic<bool> MainThreadCall::is_stopped_{false};

MainThreadCall::MainThreadCall(Function function) noexcept : next_(first_), function_(function) { first_ = this; }

void MainThreadCall::request() noexcept {
    if (is_due_.load(std::memory_order_acquire))
        return recorder().request_attention();  // no event of the main thread yet
    if (is_stopped_.load(std::memory_order_relaxed) || is_requested_.exchange(true, std::memory_order_acq_rel)) return;
    if constexpr (kHeardFromOtherThreads) {
        add();
    } else {
        is_due_.store(true, std::memory_order_release);
        recorder().request_attention();
    }
}

void MainThreadCall::add_due() noexcept {
    for (MainThreadCall* call = first_; call != nullptr; call = call->next_) {
        if (!call->is_due_.load(std::memory_order_acquire)) continue;
        if (!process::is_main_thread()) return;
        if (call->is_due_.exchange(false, std::memory_order_acq_rel)) call->add();
    }
}

void MainThreadCall::request_with_gil() noexcept {
    if (!is_requested_.exchange(true, std::memory_order_acq_rel)) add();
}

void MainThreadCall::stop_on_main_thread() noexcept {
    if (process::is_main_thread()) is_stopped_.store(true, std::memory_order_relaxed);
}

int MainThreadCall::run(void* call) {
    auto* const self = static_cast<MainThreadCall*>(call);
    self->begin();
    return is_stopped_.load(std::memory_order_relaxed) ? 0 : self->function_();
}

void MainThreadCall::add() noexcept {
    if (Py_AddPendingCall(run, this) != 0) begin();  // its queue is full
}

}  // namespace hiwater
