// When a recording gives pages of its capture back to the system: the call paths that were hardly used since then.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/pages.h"

namespace hiwater {

// What is used again costs a fault for each page, which the file's cache answers. So the capture may become somewhat
// larger than what was used soon after the last time, and the time since then is a multiple of what that took, together
// with the faults since then: smaller where there is nearly as much as docs/performance.md promises at most, and
// doubled each time that most of what left came back. What a program used only at its start leaves after some seconds
// in any case.
class GiveBack {
public:
    static constexpr std::uint64_t kColdNs = 10'000'000'000, kFaultNs = 3'000, kPause = 100, kPauseNearPromise = 17;
    static constexpr std::int64_t kAllowed = 1 << 20, kNearPromise = 8 << 20;
    static constexpr std::uint32_t kMostInVain = 6;

    // Of what hiwater has resident and the program had at its peak.
    static bool is_near_promise(std::int64_t own_bytes, std::int64_t program_peak) noexcept {
        return own_bytes > kNearPromise + program_peak / 10 * 3;
    }

    // `bytes` of the capture are resident, `put_bytes` were put there since the recording began. Call it before each
    // note(); the first call after it sees what the program uses.
    bool is_due(std::uint64_t now, std::int64_t bytes, std::int64_t put_bytes, bool near_promise) noexcept {
        if (used_bytes_ < 0) used_bytes_ = bytes;
        const std::int64_t came_back = std::max<std::int64_t>(0, bytes - put_bytes - left_bytes_);
        const std::uint64_t cost_ns = took_ns_ + kFaultNs * static_cast<std::uint64_t>(came_back) / kPage;
        in_vain_now_ = came_back > given_bytes_ / 2 ? std::min(in_vain_ + 1, kMostInVain) : 0;
        const std::uint64_t passed_ns = now - last_ns_;
        const bool is_large = bytes > used_bytes_ + used_bytes_ / 4 + kAllowed;
        const std::uint64_t pause = (near_promise ? kPauseNearPromise : kPause) << in_vain_now_;
        return (is_large && passed_ns >= pause * cost_ns) || passed_ns >= kColdNs;
    }
    // They were given back at `now`: of so many bytes so many were left.
    void note(std::uint64_t now, std::uint64_t took_ns, std::int64_t bytes, std::int64_t left_bytes,
              std::int64_t put_bytes) noexcept {
        last_ns_ = now;
        took_ns_ = took_ns;
        used_bytes_ = -1;
        left_bytes_ = left_bytes - put_bytes;
        given_bytes_ = bytes - left_bytes;
        in_vain_ = in_vain_now_;
    }

private:
    std::uint64_t last_ns_ = 0, took_ns_ = 0;
    // Of the capture: what was resident some time after the last time, -1: to be counted; what was at once, without all
    // that was put until then; and how much went.
    std::int64_t used_bytes_ = 0, left_bytes_ = 0, given_bytes_ = 0;
    std::uint32_t in_vain_ = 0, in_vain_now_ = 0;  // times in a row that most of it came back
};

}  // namespace hiwater
