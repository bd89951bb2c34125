// A write beyond RLIMIT_FSIZE sends SIGXFSZ to the thread that made it, which ends a program that neither handles nor
// ignores it. While one of these lives, the signal that our own write causes is held back and taken away again; the
// call's EFBIG means the same.
#pragma once

#include <pthread.h>
#include <signal.h>

#include "base/raw_calls.h"
#include "base/signals_blocked.h"
#include "base/uncopied.h"

namespace hiwater {

class FileSizeSignalHeld : Uncopied {
public:
    FileSizeSignalHeld() noexcept {
        sigemptyset(&signal_);
        sigaddset(&signal_, SIGXFSZ);
        was_pending_ = is_pending();  // one of the program's own, which it holds back itself
        ::pthread_sigmask(SIG_BLOCK, nullptr, &before_);
        sigset_t more = before_;
        sigaddset(&more, SIGXFSZ);
        set_signal_mask(more);
    }
    ~FileSizeSignalHeld() {
        if (!was_pending_ && is_pending()) platform::take_pending(signal_);
        set_signal_mask(before_);
    }

private:
    static bool is_pending() noexcept {
        sigset_t pending;
        return ::sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    }

    sigset_t signal_, before_;
    bool was_pending_;
};

}  // namespace hiwater
