// The end of a main thread without its process: the program may have ended it alone, or the kernel did, as strict
// seccomp does. Without a thread of hiwater the process would have ended.
#pragma once

namespace hiwater {

// A field of /proc/PID/stat, counted from 1 as proc(5) does; from the third on.
const char* stat_field(const char* text, int number) noexcept;

// Where all threads but this one have ended, ends as the main thread did, and so does the process: newer kernels take
// the status of the last thread.
void end_as_main_thread() noexcept;

}  // namespace hiwater
