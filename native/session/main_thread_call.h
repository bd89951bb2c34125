// A function that the interpreter's main thread calls between two instructions of the program, because the sampler's thread, which has no GIL, asks
// for it. A main thread that is in one long call comes to it afterwards.
#pragma once

#include <Python.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "session/recorder.h"

namespace hiwater {

class MainThreadCall : Uncopied {
public:
    using Function = int (*)(void*);
    // The function calls begin() first.
    explicit constexpr MainThreadCall(Function function) noexcept : function_(function) {}

    // From the sampler's thread, as often as it likes.
    void ask() noexcept {
        if (is_due_.load(std::memory_order_acquire)) return Recorder::instance().request_attention();  // it has not come by us yet
        if (is_asked_.exchange(true, std::memory_order_acq_rel)) return;
        if constexpr (kHeardFromOtherThreads) {
            add();
        } else {
            is_due_.store(true, std::memory_order_release);
            Recorder::instance().request_attention();
        }
    }
    // From a thread of the program during an event: makes the request that the sampler could not make.
    void ask_from_here() noexcept {
        if (!is_due_.load(std::memory_order_acquire) || ::syscall(SYS_gettid) != ::getpid()) return;
        if (is_due_.exchange(false, std::memory_order_acq_rel)) add();
    }
    void begin() noexcept { is_asked_.store(false, std::memory_order_release); }

private:
    // Before 3.13 the main thread runs pending calls of other threads only when it releases the GIL: there it must add the call itself.
    static constexpr bool kHeardFromOtherThreads = PY_VERSION_HEX >= 0x030D0000;

    void add() noexcept {
        if (Py_AddPendingCall(function_, nullptr) != 0) begin();  // its queue is full
    }

    const Function function_;
    std::atomic<bool> is_asked_{false};  // and not answered yet
    std::atomic<bool> is_due_{false};
};

}  // namespace hiwater
