// The functions of the C library that hooks stand in for. A name that nobody defines stays null.
#pragma once

#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace hiwater::interpose {

struct Real {
    void* (*malloc)(std::size_t);
    void* (*calloc)(std::size_t, std::size_t);
    void* (*realloc)(void*, std::size_t);
    void* (*reallocarray)(void*, std::size_t, std::size_t);
    void (*free)(void*);
    void (*free_sized)(void*, std::size_t);
    void (*free_aligned_sized)(void*, std::size_t, std::size_t);
    int (*posix_memalign)(void**, std::size_t, std::size_t);
    void* (*aligned_alloc)(std::size_t, std::size_t);
    void* (*memalign)(std::size_t, std::size_t);
    void* (*valloc)(std::size_t);
    void* (*pvalloc)(std::size_t);
    void* (*mmap)(void*, std::size_t, int, int, int, off_t);
    void* (*mmap64)(void*, std::size_t, int, int, int, off64_t);
    int (*munmap)(void*, std::size_t);
    void* (*mremap)(void*, std::size_t, std::size_t, int, ...);
    int (*mprotect)(void*, std::size_t, int);
    int (*open)(const char*, int, ...);
    int (*open64)(const char*, int, ...);
    int (*openat)(int, const char*, int, ...);
    int (*openat64)(int, const char*, int, ...);
    int (*memfd_create)(const char*, unsigned int);
    int (*shm_open)(const char*, int, mode_t);
    int (*ftruncate)(int, off_t);
    int (*ftruncate64)(int, off64_t);
    int (*fallocate)(int, int, off_t, off_t);
    int (*fallocate64)(int, int, off64_t, off64_t);
    int (*posix_fallocate)(int, off_t, off_t);
    int (*posix_fallocate64)(int, off64_t, off64_t);
    void* (*shmat)(int, const void*, int);
    int (*shmdt)(const void*);
    int (*brk)(void*);
    void* (*sbrk)(intptr_t);
    int (*pthread_create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    int (*prctl)(int, ...);
    long (*syscall)(long, long, long, long, long, long, long);
    int (*pthread_setname_np)(pthread_t, const char*);
    int (*sigaction)(int, const struct sigaction*, struct sigaction*);
    sighandler_t (*signal)(int, sighandler_t);
    void (*longjmp)(const void*, int);
    void (*_longjmp)(const void*, int);
    void (*siglongjmp)(const void*, int);
    void (*__longjmp_chk)(const void*, int);
    pid_t (*fork)();
    pid_t (*_Fork)();
    int (*forkpty)(int*, char*, const termios*, const winsize*);
    void (*exit_now)(int);
    void (*exit_now_c)(int);
    int (*execv)(const char*, char* const*);
    int (*execve)(const char*, char* const*, char* const*);
    int (*execvp)(const char*, char* const*);
    int (*execvpe)(const char*, char* const*, char* const*);
    int (*fexecve)(int, char* const*, char* const*);
};
extern Real real;

}  // namespace hiwater::interpose
