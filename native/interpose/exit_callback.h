// The recorder's last call into Python when the program ends by _exit, without the interpreter's exit callbacks; and
// os.abort().
#pragma once

namespace hiwater::interpose {

// A callable of one argument, the exit code. It is called once, in the process that set it. None takes it back. The
// caller holds the GIL.
void set_exit_callback(void* callable) noexcept;
// Calls it where this thread may run Python.
void call_exit_callback(int exit_code) noexcept;

// Whether an address lies in os.abort(), once find_os_abort() has been called. The latter needs the GIL.
void find_os_abort() noexcept;
bool is_in_os_abort(const void* address) noexcept;

}  // namespace hiwater::interpose
