// The kernel's calls by their instruction, with what the C library's functions return and leave in errno. A call of
// those functions goes through a slot of this library, and other tools in the process exchange such slots (memray's
// Tracker, sanitizers, preloaded libraries): they would take our memory for the program's, and wait under their locks
// for ours. None of these is a cancellation point.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace hiwater::raw {

// Returns what the kernel does: a negative error number for a failure.
inline long invoke(long number, long a, long b, long c, long d, long e, long f) noexcept {
#if defined(__x86_64__)
    register long r10 asm("r10") = d;
    register long r8 asm("r8") = e;
    register long r9 asm("r9") = f;
    long result;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 asm("x8") = number;
    register long x0 asm("x0") = a;
    register long x1 asm("x1") = b;
    register long x2 asm("x2") = c;
    register long x3 asm("x3") = d;
    register long x4 asm("x4") = e;
    register long x5 asm("x5") = f;
    asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#else
#error "the instruction of a system call is not known for this architecture"
#endif
}

template <typename T>
long word(T value) noexcept {
    if constexpr (std::is_null_pointer_v<T>) {
        return 0;
    } else if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<long>(value);
    } else {
        return static_cast<long>(value);
    }
}

template <typename A = long, typename B = long, typename C = long, typename D = long, typename E = long,
          typename F = long>
long syscall(long number, A a = 0, B b = 0, C c = 0, D d = 0, E e = 0, F f = 0) noexcept {
    const long result = invoke(number, word(a), word(b), word(c), word(d), word(e), word(f));
    if (result >= 0 || result < -4095) return result;
    errno = static_cast<int>(-result);
    return -1;
}

inline void* mmap(void* at, std::size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
    return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
inline void* mremap(void* at, std::size_t old_bytes, std::size_t bytes, int flags, void* to = nullptr) noexcept {
    return reinterpret_cast<void*>(syscall(SYS_mremap, at, old_bytes, bytes, flags, to));
}
inline int munmap(void* at, std::size_t bytes) noexcept { return static_cast<int>(syscall(SYS_munmap, at, bytes)); }
inline int mprotect(void* at, std::size_t bytes, int protection) noexcept {
    return static_cast<int>(syscall(SYS_mprotect, at, bytes, protection));
}
inline int madvise(void* at, std::size_t bytes, int advice) noexcept {
    return static_cast<int>(syscall(SYS_madvise, at, bytes, advice));
}
inline int mincore(void* at, std::size_t bytes, unsigned char* in_core) noexcept {
    return static_cast<int>(syscall(SYS_mincore, at, bytes, in_core));
}
inline ssize_t process_vm_readv(pid_t pid, const iovec* here, unsigned long here_many, const iovec* there,
                                unsigned long there_many, unsigned long flags) noexcept {
    return syscall(SYS_process_vm_readv, pid, here, here_many, there, there_many, flags);
}

inline int open(const char* path, int flags, mode_t mode = 0) noexcept {
    return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
inline int close(int fd) noexcept { return static_cast<int>(syscall(SYS_close, fd)); }
inline int fcntl(int fd, int command, int argument) noexcept {
    return static_cast<int>(syscall(SYS_fcntl, fd, command, argument));
}
inline int fstat(int fd, struct stat* out) noexcept { return static_cast<int>(syscall(SYS_fstat, fd, out)); }
inline off_t lseek(int fd, off_t offset, int from) noexcept { return syscall(SYS_lseek, fd, offset, from); }
inline int ftruncate(int fd, off_t bytes) noexcept { return static_cast<int>(syscall(SYS_ftruncate, fd, bytes)); }
inline ssize_t read(int fd, void* out, std::size_t bytes) noexcept { return syscall(SYS_read, fd, out, bytes); }
inline ssize_t write(int fd, const void* data, std::size_t bytes) noexcept {
    return syscall(SYS_write, fd, data, bytes);
}
inline ssize_t pread(int fd, void* out, std::size_t bytes, off_t offset) noexcept {
    return syscall(SYS_pread64, fd, out, bytes, offset);
}
inline ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) noexcept {
    return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

}  // namespace hiwater::raw
