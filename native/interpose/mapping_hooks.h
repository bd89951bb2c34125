// Hooks of what maps memory and gives it back, past the heap.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace hiwater::interpose {

void* hook_mmap(void* hint, std::size_t bytes, int protection, int flags, int fd, off_t offset);
void* hook_mmap64(void* hint, std::size_t bytes, int protection, int flags, int fd, off64_t offset);
int hook_munmap(void* at, std::size_t bytes);
void* hook_mremap(void* old, std::size_t old_bytes, std::size_t bytes, int flags, ...);
int hook_mprotect(void* at, std::size_t bytes, int protection);
void* hook_shmat(int id, const void* hint, int flags);
int hook_shmdt(const void* at);
void* hook_sbrk(intptr_t bytes);
int hook_brk(void* to);

}  // namespace hiwater::interpose
