// Hooks of Python's allocators, and the interpreter's signs of dying code. All of it needs the GIL.
#pragma once

#include <vector>

#include "interpose/slots.h"

namespace hiwater::interpose {

void add_python_hooks(std::vector<Hook>* hooks);

void install_python_hooks();
// Takes our allocators out where they are still on top; where somebody put theirs over ours they stay, and only pass
// on.
void remove_python_hooks() noexcept;

}  // namespace hiwater::interpose
