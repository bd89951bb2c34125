// Hooks of functions that map and unmap memory.
#pragma once

#include <vector>

#include "interpose/slots.h"

namespace hiwater::interpose {

void add_mapping_hooks(std::vector<Hook>* hooks);

}  // namespace hiwater::interpose
