// The highest of many readings of resident memory, for where the kernel's peak cannot be reset. A thread that needs no
// GIL takes them. It is away while the interpreter forks, which warns of threads; other code may fork in a signal
// handler, where threads are neither made nor ended.
#pragma once

#include <cstdint>

namespace hiwater::resident_watch {

// Calls nest. False when there can be no thread.
bool start(std::uint64_t interval_ns) noexcept;
void stop() noexcept;
// Around a fork by the interpreter; resume() is for the child, too. After a fork by other code, the child samples from
// its next peak() or read_and_reset_peak() on.
void pause() noexcept;
void resume() noexcept;
// Highest sample since the last reset, in bytes. read_and_reset_peak() begins again from what is resident now.
bool is_running() noexcept;
std::int64_t peak() noexcept;
std::int64_t read_and_reset_peak() noexcept;

}  // namespace hiwater::resident_watch
