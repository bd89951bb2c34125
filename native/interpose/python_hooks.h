// Python's own allocators and what else we ask of the interpreter. All of it needs the GIL.
#pragma once

#include <cstddef>
#include <string>

namespace hiwater::interpose {

void install_python_hooks();
// Takes our allocators out where they are still on top; where somebody put theirs over ours they stay, and only pass on.
void remove_python_hooks() noexcept;
// The name of the threading.Thread the calling thread is just about to start; empty when it is not inside Thread.start.
void read_started_thread_name(char* out, std::size_t size) noexcept;
// What the interpreter calls its allocators: "pymalloc", "malloc", "pymalloc_debug" …; "other" while ours are in place.
std::string object_allocator_name();

}  // namespace hiwater::interpose
