// Which library some code belongs to, found inside a hook: without the loader, whose lock may be held by a thread that
// waits for this one.
#pragma once

#include <cstddef>

namespace hiwater::interpose {

// Writes the file name of the library that the code is in. Nothing for the interpreter, its own extension modules, the
// C library, libffi and code in no file: for these the stack shows the caller. The first call from a library reads
// /proc/self/maps.
void name_library_of(const void* code, char* name, std::size_t size) noexcept;

// Forgets what is known: libraries may have been unloaded, and others be where they were.
void forget_libraries() noexcept;

}  // namespace hiwater::interpose
