// Where what every event reads lies in its page. The cache nearest to the processor holds few lines, eight or twelve,
// of those that begin at the same offset in their pages. The first one is taken: each of CPython's pools begins with
// what its allocator reads at each event, and tables and variables of the recorder begin their pages, too, unless they
// say otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/raw_calls.h"

namespace hiwater {

inline constexpr std::size_t kLine = 64, kLinesOfPage = platform::kPageBytes / kLine;

// An offset in a page, never 0: of each owner at this or another address mostly another one.
inline std::size_t line_for(const void* owner) noexcept {
    return kLine * (1 + reinterpret_cast<std::uintptr_t>(owner) / alignof(void*) % (kLinesOfPage - 1));
}

}  // namespace hiwater
