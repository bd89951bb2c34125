// The sampler: a thread that reads the clock and resident memory. It needs no GIL, takes no signal, and reads files
// that a thread of the program opened (base/own_file.h).
#pragma once

#include <cstdint>

namespace hiwater::sampler {

bool start() noexcept;
// The same some time after the fork that made this process: most children of forks are over before.
void start_later() noexcept;
void stop() noexcept;
// A fork by the interpreter must find no second thread (CPython warns of one): the sampler ends before it, and comes
// back after it. Returns whether it is paused. Not in a signal's handler, as note_forked() and resume().
bool pause_for_fork() noexcept;
// The fork is done, but CPython may count threads only when the program's callbacks have returned: the sampler begins
// then. Where it cannot know when that is, it begins some time later.
void note_forked() noexcept;
// Whether it is too early to begin it at an allocation.
bool is_to_rest() noexcept;
void resume() noexcept;
bool is_running() noexcept;
// The calling thread is about to free a large block or mapping. If the process seems to use clearly more memory than at
// the last residency snapshot, and this release ends that, the thread asks the sampler for another snapshot and waits
// for it: 50 ms at most, and all waits of a recording take 0.2 s and a hundredth of its time at most.
void before_release(std::int64_t live_bytes, std::int64_t released_bytes) noexcept;
// The calling thread is about to execute another program, and asks the sampler for a residency snapshot. It does not
// take one itself: it may be in a signal's handler, and what the handler interrupted may hold malloc's locks.
void take_snapshot_before_exec() noexcept;
// The calling thread is about to allocate a large block, or to free one. While the sampler does not run, that is when a
// sample is taken: a forked child that waits wakes so. A thread that rests takes its next one at once.
void note_activity() noexcept;
// Whether there are other processes that count in the same sum: the process is a child of a run, or has children.
bool has_relatives() noexcept;
void note_relatives() noexcept;
void forget_in_child() noexcept;

}  // namespace hiwater::sampler
