// Hooks of functions that make threads and processes, and that end them.
#pragma once

#include <pthread.h>
#include <pty.h>
#include <sys/types.h>

namespace hiwater::interpose {

int hook_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*), void* argument);
int hook_prctl(int option, ...);
long hook_syscall(long number, long a, long b, long c, long d, long e, long f);
int hook_pthread_setname_np(pthread_t thread, const char* name);
pid_t hook_fork();
pid_t hook__Fork();
int hook_forkpty(int* master, char* name, const termios* attributes, const winsize* size);
[[noreturn]] void hook_exit_now(int code);
[[noreturn]] void hook_exit_now_c(int code);
int hook_execv(const char* path, char* const* argv);
int hook_execve(const char* path, char* const* argv, char* const* environment);
int hook_execvp(const char* file, char* const* argv);
int hook_execvpe(const char* file, char* const* argv, char* const* environment);
int hook_fexecve(int fd, char* const* argv, char* const* environment);

// Looks up what these hooks need of the C library.
void prepare_process_hooks() noexcept;

}  // namespace hiwater::interpose
