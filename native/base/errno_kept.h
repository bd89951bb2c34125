// A hooked function sets errno where the function itself does, and nowhere else. Around our own calls that may change it.
#pragma once

#include <errno.h>

namespace hiwater {

class ErrnoKept {
public:
    ErrnoKept() noexcept : before_(errno) {}
    ~ErrnoKept() { errno = before_; }
    ErrnoKept(const ErrnoKept&) = delete;
    ErrnoKept& operator=(const ErrnoKept&) = delete;

private:
    int before_;
};

}  // namespace hiwater
