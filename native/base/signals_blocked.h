// No signal handler runs on this thread meanwhile: none can jump out (siglongjmp), and none can wait for its own
// thread. For what is rare, as it takes two system calls. SIGBUS still comes: it means that the capture was truncated.
#pragma once

#include <pthread.h>
#include <signal.h>

#include "base/uncopied.h"

namespace hiwater {

class SignalsBlocked : Uncopied {
public:
    SignalsBlocked() noexcept {
        sigset_t all;
        sigfillset(&all);
        sigdelset(&all, SIGBUS);
        ::pthread_sigmask(SIG_BLOCK, &all, &before_);
    }
    ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

}  // namespace hiwater
