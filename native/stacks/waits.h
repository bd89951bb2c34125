// The line at which a thread stood that waits for another; see waits.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "stacks/frames.h"

namespace hiwater {

// What stands before the function's name in such a node's code.
inline constexpr std::string_view kWaitedFor = "[waited for] ";

// For a block of this size the engine looks again where the thread is waited for.
inline constexpr std::size_t kAsksAgain = 64 * 1024;

// The thread that started a thread, the one that started that, and so on. Identities of states are never used again.
class Starters {
public:
    // Of a thread that the calling one makes, which is `maker` and has these starters itself.
    Starters with(const hw_state& maker) const noexcept {
        if (maker.at == nullptr) return *this;  // not a thread of Python's
        Starters all;
        all.nearest_ = maker;
        all.ids_[0] = maker.id;
        std::copy_n(ids_, kMost - 1, all.ids_ + 1);
        all.count_ = std::min(count_ + 1, kMost);
        return all;
    }
    const hw_state& nearest() const noexcept { return nearest_; }
    std::uint32_t count() const noexcept { return count_; }
    std::uint64_t id(std::uint32_t i) const noexcept { return ids_[i]; }  // 0: the nearest one's

private:
    static constexpr std::uint32_t kMost = 4;

    hw_state nearest_ = {};
    std::uint64_t ids_[kMost] = {};
    std::uint32_t count_ = 0;
};

struct WaitedAt {
    std::uint32_t code = 0, line = 0;

    bool operator==(const WaitedAt&) const = default;
};

}  // namespace hiwater
