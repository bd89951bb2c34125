// Hooks of functions that make threads and processes, and that end them.
#pragma once

#include <vector>

#include "interpose/slots.h"

namespace hiwater::interpose {

// Looks up what these hooks need of the C library.
void prepare_process_hooks() noexcept;

void add_process_hooks(std::vector<Hook>* hooks);

}  // namespace hiwater::interpose
