// Hooks of jumps to a place that setjmp() saved: a signal handler may leave the recorder's work unfinished by one.
#pragma once

#include <vector>

#include "interpose/slots.h"

namespace hiwater::interpose {

void add_jump_hooks(std::vector<Hook>* hooks);

}  // namespace hiwater::interpose
