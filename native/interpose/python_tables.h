// The table of Python's allocators as other tools see it, and arenas.
#pragma once

#include <Python.h>

namespace hiwater::interpose {

// A tool whose functions were in the table before ours may look whether they still are, and put them there again if
// not, on top of those that it finds (Scalene does). Ours would then lie above its and below them. So to that library,
// the table is what lies below ours: null for any other caller.
PyMemAllocatorEx* table_for(const void* caller, PyMemAllocatorDomain name) noexcept;

// Arenas are mappings of Python's own allocator.
void install_arenas();
void remove_arenas() noexcept;

}  // namespace hiwater::interpose
