// Signals that end the process. Where the program leaves a signal to its default, a handler here writes into the
// capture how the process ends, and then the signal does what it does by default: exit status and core dump are the
// same as without hiwater.
//
// The program does not see the handlers: its calls of sigaction(), signal() and sigaltstack() come here. SIGBUS belongs
// to capture/file_guard.h, which reports the end through note(). Each recorded thread without an alternate signal stack
// gets one of ours: after a stack overflow there is no other room for a handler.
#pragma once

#include <signal.h>

#include <cstdint>

namespace hiwater::fatal_signals {

// Of the process that calls them. end() gives back what the program's calls have asked for meanwhile.
void begin() noexcept;
void end() noexcept;
void leave() noexcept;         // the process is about to end: nothing is noted from here on, and the handlers stay
void end_in_child() noexcept;  // of a fork: another thread may have been inside begin() or end()

// The interpreter is about to call abort() for a fatal error of its own.
void expect_fatal_error() noexcept;
// The process is about to die of this signal.
void note(int number, const siginfo_t& info, const void* context) noexcept;

// The program's calls.
using SignalHandler = void (*)(int);
using SignalFunction = SignalHandler (*)(int, SignalHandler);
int program_action(int number, const struct sigaction* action, struct sigaction* old) noexcept;
SignalHandler program_signal(int number, SignalHandler handler, SignalFunction real) noexcept;
int program_stack(const stack_t* stack, stack_t* old) noexcept;

// An alternate signal stack for the calling thread, if it has none, and its end.
void give_stack() noexcept;
void take_stack_back() noexcept;

}  // namespace hiwater::fatal_signals
