// No signal handler runs on this thread meanwhile: none can jump out (siglongjmp), and none can wait for its own
// thread. For what is rare, as it takes three system calls. SIGBUS still comes, as it means that the capture was
// truncated, unless it is blocked, too.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "base/raw_calls.h"
#include "base/uncopied.h"

namespace hiwater {

// Which signals are pending is not asked from the moment on that the program filters its system calls: the filter may
// end the process for it.
class PendingSignals {
public:
    // Returns when no other thread is about to ask.
    static void expect_filter() noexcept {
        may_ask_ = false;
        while (asking_ != 0) ::sched_yield();
    }
    static void expect_no_filter() noexcept { may_ask_ = true; }
    static void forget_in_child() noexcept { asking_ = 0; }  // the threads that asked are not here

    // Calls work() unless the calls are filtered.
    template <typename Work>
    static void if_allowed(const Work& work) noexcept {
        ++asking_;
        if (may_ask_) work();
        --asking_;
    }

private:
    static inline constinit std::atomic<bool> may_ask_{true};
    static inline constinit std::atomic<std::uint32_t> asking_{0};
};

// Sets the calling thread's signal mask. A signal to the process may have come just before: the kernel chose another
// thread for it, first the main thread, whose call it is to interrupt. But at a change of a mask it hands the signal to
// the thread that runs, and the other one would sleep on. So this waits until that one has taken it: for some twenty
// milliseconds at most, as all others may block it.
inline void set_signal_mask(const sigset_t& mask) noexcept {
    constexpr timespec kNap{0, 50'000};
    const auto signals_of = [](const sigset_t& set) {
        std::uint64_t signals = 0;
        std::memcpy(&signals, &set, std::min(sizeof signals, sizeof set));
        return signals;
    };
    PendingSignals::if_allowed([&] {
        sigset_t pending;
        for (int nap = 0; nap < 200 && ::sigpending(&pending) == 0; ++nap) {
            const std::uint64_t let_in = signals_of(pending) & ~signals_of(mask);
            if (let_in == 0 || platform::is_main_thread() || (platform::pending_for_thread() & let_in) != 0) break;
            platform::sleep_for(kNap);
        }
    });
    ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

class SignalsBlocked : Uncopied {
public:
    enum class But { sigbus, none };

    explicit SignalsBlocked(But but = But::sigbus) noexcept {
        sigset_t all;
        sigfillset(&all);
        if (but == But::sigbus) sigdelset(&all, SIGBUS);
        ::pthread_sigmask(SIG_BLOCK, &all, &before_);
    }
    ~SignalsBlocked() { set_signal_mask(before_); }

private:
    sigset_t before_;
};

}  // namespace hiwater
