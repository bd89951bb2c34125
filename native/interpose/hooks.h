// The functions of the C library that we stand in for.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "interpose/slots.h"

namespace hiwater::interpose {

// Installs the hooks, unless they are installed already. Returns an empty text, or which part does not work.
std::string install_hooks();
// In a process that ends, pointers in data stay exchanged: to search for them takes a third of a millisecond, and hooks
// pass on.
void remove_hooks(bool process_ends) noexcept;
// Whether the calls of malloc and free are among the hooks of this engine.
bool sees_malloc() noexcept;
// Registers, once for the life of the process, what must happen around a fork.
void watch_forks() noexcept;

// Each of these appends hooks of one subject. Of jumps to a place that setjmp() saved: a signal handler may leave the
// recorder's work unfinished by one. Of functions that map and unmap memory.
void add_jump_hooks(std::vector<Hook>* hooks);
void add_signal_hooks(std::vector<Hook>* hooks);
void add_unloading_hooks(std::vector<Hook>* hooks);
void add_mapping_hooks(std::vector<Hook>* hooks);
// Of functions that make objects of shared memory. A mapping of an object counts in the process that made it: the one
// that opened a file that was new or was emptied by that call, or the one that gave an empty object its size.
void add_shared_memory_hooks(std::vector<Hook>* hooks);

// Whether a file is memory: of tmpfs, as memfd's and those below /dev/shm are, or of hugetlbfs. `device` is its st_dev.
bool is_memory_file(int fd, dev_t device) noexcept;

}  // namespace hiwater::interpose
