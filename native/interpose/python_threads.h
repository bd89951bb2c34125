// The names that Python gives its threads: read as a thread starts and ends, and when all are asked for. All of it
// needs the GIL.
#pragma once

#include "stacks/thread_state.h"

namespace hiwater::interpose {

// The name of the threading.Thread that the calling thread is about to start; left as it is where it is not inside
// Thread.start. Its last one goes to the recorder.
void name_started_thread(ThreadName* out) noexcept;
// Passes the names of all threads in the module `threading` to the recorder. `watch_ends`: and their last ones, too.
void name_python_threads(bool watch_ends = false) noexcept;

}  // namespace hiwater::interpose
