// A hooked function sets errno where the function itself does, and nowhere else. Around our own calls that may change
// it.
#pragma once

#include <errno.h>

#include "base/uncopied.h"

namespace hiwater {

class ErrnoKept : Uncopied {
public:
    ErrnoKept() noexcept : before_(errno) {}
    ~ErrnoKept() { errno = before_; }

private:
    int before_;
};

}  // namespace hiwater
