// Python's own allocators and what else we ask of the interpreter. All of it needs the GIL.
#pragma once

#include <cstddef>

namespace hiwater::interpose {

void install_python_hooks();
// Takes our allocators out where they are still on top; where somebody put theirs over ours they stay, and only pass on.
void remove_python_hooks() noexcept;

// Calls what the program's recorder left for its last moment (see set_last_words), where this thread may run Python.
void say_last_words(int exit_code) noexcept;
// A callable of one argument, the exit code, for a program that ends through _exit without the interpreter's exit callbacks; it is
// called once, in the process that set it. None takes it back.
void set_last_words(void* callable) noexcept;

}  // namespace hiwater::interpose
