// What keeps a program alive whose capture somebody truncates (`: > run.hiw`, `cp other run.hiw`). The kernel takes the
// pages away and answers the next access with SIGBUS, at any instruction that keeps an account, in any thread. The
// handler here puts zeroed memory in the place of the capture, for good, and notifies the recorder, which stops. Every
// other SIGBUS goes to the handler that was set before; where there is none, on_death is called before the process
// dies.
//
// The program does not see the handler: its calls of sigaction() and signal() for SIGBUS come here (program_action,
// program_signal), are remembered, and decide what SIGBUS then does. A program that ignores SIGBUS has it ignored, and
// is not protected by the handler; nor is a thread that blocks SIGBUS. For these, find_truncation() is called many
// times a second.
#pragma once

#include <signal.h>

#include <cstddef>

#include "base/uncopied.h"

namespace hiwater::capture::file_guard {

// Which memory is a file's. No locks: called where segments are mapped and given back, and in the child of a fork.
void add(void* at, std::size_t bytes) noexcept;
void remove(const void* at) noexcept;

// From here to end(), `on_truncation` is called when a file has been truncated, and `on_death` when the process is
// about to die of SIGBUS, both possibly in a signal handler.
using OnDeath = void (*)(int number, const siginfo_t& info, const void* context);
void begin(void (*on_truncation)(), OnDeath on_death) noexcept;
void end() noexcept;
void end_in_child() noexcept;  // of a fork: another thread may have been inside begin() or end()

// Whether a file has been truncated since begin(): its memory belongs to no file any more.
bool is_truncated() noexcept;
// Puts zeroed memory in the place of all that was added, and calls on_truncation, once.
void cut() noexcept;
// Whether the file still has the page at `at`, read from the kernel without a signal. True on kernels before 5.14,
// which have no such call.
bool has_page(const void* at) noexcept;

// The program's sigaction() and signal() for SIGBUS. False where the call must go to the C library.
bool program_action(const struct sigaction* action, struct sigaction* old, int* result) noexcept;
bool program_signal(void (*handler)(int), void (**old)(int)) noexcept;

// While one lives, a thread that has all signals blocked takes SIGBUS, for its own faults alone: one that was sent to
// the process stays for the program's threads.
class OwnFaults : Uncopied {
public:
    OwnFaults() noexcept;
    ~OwnFaults();
};

}  // namespace hiwater::capture::file_guard
