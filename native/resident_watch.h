// The highest of many readings of resident memory, for where the kernel's mark cannot be started anew. A thread that needs no GIL
// takes them; it is away while the process forks.
#pragma once

#include <cstdint>

namespace hiwater::resident_watch {

// Calls nest. False when there can be no thread.
bool start(std::uint64_t interval_ns) noexcept;
void stop() noexcept;
// Highest sample since the last fold, in bytes; fold begins anew from what is resident now.
std::int64_t peak() noexcept;
std::int64_t fold() noexcept;

}  // namespace hiwater::resident_watch
