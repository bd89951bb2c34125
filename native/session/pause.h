// How long to wait until work of the sampler's thread is done again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/process.h"

namespace hiwater {

// Until as much has passed of the clock, and the program has taken as much of the processors' time: where many
// processes share those, it takes little of it while much of the clock passes.
class Pause {
public:
    bool is_over(std::uint64_t now) const noexcept {
        return now >= until_ns_ && process::process_ns() >= until_used_ns_;
    }
    void begin(std::uint64_t now, std::uint64_t ns, std::uint64_t least_ns) noexcept {
        until_ns_ = now + std::max(ns, least_ns);
        until_used_ns_ = process::process_ns() + ns;
    }

private:
    std::uint64_t until_ns_ = 0, until_used_ns_ = 0;
};

}  // namespace hiwater
