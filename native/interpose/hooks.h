// The functions of the C library that we stand in for.
#pragma once

#include <string>

namespace hiwater::interpose {

// Installs the hooks, unless they are installed already. Returns an empty text, or which part does not work.
std::string install_hooks();
void remove_hooks() noexcept;
// Registers, once for the life of the process, what must happen around a fork.
void watch_forks() noexcept;

}  // namespace hiwater::interpose
