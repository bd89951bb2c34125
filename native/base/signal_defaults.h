// For those who answer signals in the program's place: changing what a signal does, and doing what it does by default.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "base/raw_calls.h"
#include "base/signals_blocked.h"
#include "base/uncopied.h"

namespace hiwater {

// Of who changes what a signal does: one thread at a time, and no handler may run meanwhile that would do the same.
class SignalChange : Uncopied {
public:
    explicit SignalChange(std::atomic_flag& is_changing) noexcept : is_changing_(is_changing) {
        while (is_changing_.test_and_set(std::memory_order_acquire)) ::sched_yield();
    }
    ~SignalChange() { is_changing_.clear(std::memory_order_release); }

private:
    SignalsBlocked blocked_{SignalsBlocked::But::none};  // first: until the flag is cleared
    std::atomic_flag& is_changing_;
};

// As if the handler that calls this had never been. `is_repeated`: the instruction that caused the signal runs again
// when the handler returns. A signal that was sent is sent again.
inline void do_signal_default(int number, siginfo_t* info, bool is_repeated) noexcept {
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    ::sigaction(number, &standard, nullptr);
    if (!is_repeated) raw::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), raw::syscall(SYS_gettid), number, info);
}

}  // namespace hiwater
