// Hooks of functions that make objects of shared memory. A mapping of an object counts in the process that made it: the one that opened
// a file that was new or was emptied by that call, or the one that gave an empty object its size.
#pragma once

#include <sys/types.h>

#include <vector>

#include "interpose/slots.h"

namespace hiwater::interpose {

// Whether a file is memory: of tmpfs, as memfd's and those below /dev/shm are, or of hugetlbfs. `device` is its st_dev.
bool is_memory_file(int fd, dev_t device) noexcept;

void add_shared_memory_hooks(std::vector<Hook>* hooks);

}  // namespace hiwater::interpose
