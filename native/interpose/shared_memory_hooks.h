// Hooks of functions that make objects of shared memory. A mapping of an object counts in the process that made it.
#pragma once

#include <sys/types.h>

namespace hiwater::interpose {

// Whether a file is memory: of tmpfs, as memfd's and those below /dev/shm are, or of hugetlbfs. `device` is its st_dev.
bool is_memory_file(int fd, dev_t device) noexcept;

int hook_memfd_create(const char* name, unsigned int flags);
int hook_shm_open(const char* name, int flags, mode_t mode);
// Who opens a file that is new then, or is emptied by it, makes what comes into it.
int hook_open(const char* path, int flags, ...);
int hook_open64(const char* path, int flags, ...);
int hook_openat(int folder, const char* path, int flags, ...);
int hook_openat64(int folder, const char* path, int flags, ...);
// Who gives an empty object its size has made it.
int hook_ftruncate(int fd, off_t bytes);
int hook_ftruncate64(int fd, off64_t bytes);
int hook_fallocate(int fd, int mode, off_t offset, off_t bytes);
int hook_fallocate64(int fd, int mode, off64_t offset, off64_t bytes);
int hook_posix_fallocate(int fd, off_t offset, off_t bytes);
int hook_posix_fallocate64(int fd, off64_t offset, off64_t bytes);

}  // namespace hiwater::interpose
