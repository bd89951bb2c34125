// Where what every event reads lies in its page. The cache nearest to the processor holds few lines, eight or twelve,
// of those that begin at the same offset in their pages. The first one is taken: each of CPython's pools begins with
// what its allocator reads at each event, and tables and variables of the recorder begin their pages, too, unless they
// say otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hiwater {

inline constexpr std::size_t kLine = 64;

// An offset in a page, never 0: of another owner mostly another one. Small, as what lies there may take a page more.
inline std::size_t line_for(const void* owner) noexcept {
    constexpr std::size_t kLines = 15;
    return kLine * (1 + reinterpret_cast<std::uintptr_t>(owner) / alignof(void*) % kLines);
}

}  // namespace hiwater
