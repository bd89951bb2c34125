// Hooked functions are no cancellation points, so none of ours may be one. Around what is, and is no raw call:
// posix_fallocate, pthread_join.
#pragma once

#include <pthread.h>

#include "base/uncopied.h"

namespace hiwater {

class Uncancelled : Uncopied {
public:
    Uncancelled() noexcept { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
    ~Uncancelled() { ::pthread_setcancelstate(before_, nullptr); }

private:
    int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace hiwater
