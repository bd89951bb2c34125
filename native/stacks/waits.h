// The line at which a thread stood that waits for another; see waits.cpp.
#pragma once

#include <algorithm>
#include <array>
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
        all.nearest_ = maker.at;
        all.states_[0] = maker.id;
        std::copy_n(states_.begin(), kMost - 1, all.states_.begin() + 1);
        return all;
    }
    hw_state nearest() const noexcept { return {nearest_, states_[0]}; }
    // The nearest one first; 0 behind the last.
    const auto& states() const noexcept { return states_; }

private:
    static constexpr std::size_t kMost = 4;

    const void* nearest_ = nullptr;
    std::array<std::uint64_t, kMost> states_ = {};
};

struct WaitedAt {
    std::uint32_t code = 0, line = 0;

    bool operator==(const WaitedAt&) const = default;
};

}  // namespace hiwater
