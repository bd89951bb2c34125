// The sampler: a thread that reads the clock and resident memory. It needs no GIL, takes no signal, and keeps its descriptors in a table
// of its own, so the program sees none of them.
#pragma once

namespace hiwater::sampler {

bool start() noexcept;
void stop() noexcept;
// A fork by the interpreter must find no second thread (CPython warns of one): the sampler ends before it, and comes back some time after.
// Returns whether it is paused. Not in a signal's handler, as note_forked() and resume_if_due().
bool pause_for_fork() noexcept;
// The fork is done: from here on the pause lasts its time, since CPython looks for threads only now.
void note_forked() noexcept;
void resume_if_due() noexcept;
bool is_running() noexcept;
void forget_in_child() noexcept;

}  // namespace hiwater::sampler
