// The names that Python gives its threads. All of it needs the GIL, but for the child of a fork.
#pragma once

#include "stacks/thread_state.h"

namespace hiwater::interpose {

// The name of the threading.Thread that the calling thread is about to start; left as it is where it is not inside
// Thread.start.
void name_started_thread(ThreadName* out) noexcept;
// Passes the names of all threads in the module `threading` to the recorder, and from then on each new name.
void name_python_threads() noexcept;
void forget_python_threads() noexcept;

}  // namespace hiwater::interpose
