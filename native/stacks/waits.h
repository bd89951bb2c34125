// The line at which a thread stood that waits for another; see waits.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hiwater {

// What stands before the function's name in such a node's code.
inline constexpr std::string_view kWaitedFor = "[waited for] ";

// For a block of this size the engine looks again where the thread is waited for.
inline constexpr std::size_t kAsksAgain = 64 * 1024;

struct WaitedAt {
    std::uint32_t code = 0, line = 0;

    bool operator==(const WaitedAt&) const = default;
};

}  // namespace hiwater
