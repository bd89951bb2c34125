// Hooks of functions that execute programs, and that wait for their end.
#pragma once

#include <vector>

#include "interpose/slots.h"

namespace hiwater::interpose {

void add_exec_hooks(std::vector<Hook>* hooks);

}  // namespace hiwater::interpose
