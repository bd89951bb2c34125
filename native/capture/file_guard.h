// What keeps a program alive whose capture somebody truncates (`: > run.hiw`, `cp other run.hiw`). The kernel takes the pages away and
// answers the next access with SIGBUS, at any instruction that keeps an account, in any thread. The handler here puts zeroed memory in
// the place of the capture, for good, and says so to the recorder, which stops. Every other SIGBUS goes to whoever had it before.
//
// The program does not see the handler: what it asks sigaction() and signal() for comes here (program_action, program_signal), is
// remembered, and is what SIGBUS then does. A program that ignores SIGBUS has it ignored, and is not protected by the handler;
// nor is a thread that blocks SIGBUS. For these, find_truncation() is called many times a second.
#pragma once

#include <signal.h>

#include <cstddef>

#include "base/uncopied.h"

namespace hiwater::capture::file_guard {

// Which memory is a file's. No locks: called where segments are mapped and given back, and in the child of a fork.
void add(void* at, std::size_t bytes) noexcept;
void remove(const void* at) noexcept;

// From here to end(), `on_truncation` is called when a file has been truncated, possibly in a signal handler.
void begin(void (*on_truncation)()) noexcept;
void end() noexcept;
void end_in_child() noexcept;  // of a fork, where another thread may have been in the midst of it

// Whether a file has been truncated since begin(): its memory belongs to no file any more.
bool is_truncated() noexcept;
// Puts zeroed memory in the place of all that was added, and calls on_truncation, once.
void cut() noexcept;
// Asks the kernel whether the file still has the page at `at`, without a signal. A kernel before 5.14 cannot tell: true.
bool has_page(const void* at) noexcept;

// What the program asks of SIGBUS, as of sigaction() and signal(). False where it is not ours to answer.
bool program_action(const struct sigaction* action, struct sigaction* old, int* result) noexcept;
bool program_signal(sighandler_t handler, sighandler_t* old) noexcept;

// While one lives, a thread that has all signals blocked takes SIGBUS, for its own faults alone: one that was sent to the
// process stays for the program's threads.
class OwnFaults : Uncopied {
public:
    OwnFaults() noexcept;
    ~OwnFaults();
};

}  // namespace hiwater::capture::file_guard
