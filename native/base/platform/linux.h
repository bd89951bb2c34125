// The kernel's calls by their instruction, with what the C library's functions return and leave in errno. A call of
// those functions goes through a slot of this library, and other tools in the process exchange such slots (memray's
// Tracker, sanitizers, preloaded libraries): they would take our memory for the program's, and wait under their locks
// for ours. None of these is a cancellation point.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace hiwater::raw {

// MADV_POPULATE_READ and MADV_POPULATE_WRITE of Linux 5.14: the headers of musl and of older C libraries lack them.
inline constexpr int kPopulateRead = 22, kPopulateWrite = 23;

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

inline int open_in(int folder, const char* name, int flags, mode_t mode) noexcept {
    return static_cast<int>(syscall(SYS_openat, folder, name, flags, mode));
}
inline int unlink_in(int folder, const char* name) noexcept {
    return static_cast<int>(syscall(SYS_unlinkat, folder, name, 0));
}
// The C library keeps a number of its own after a fork.
inline pid_t getpid() noexcept { return static_cast<pid_t>(syscall(SYS_getpid)); }

// Reads the process's own memory at several places, `bytes` in all, up to the first place that cannot be read. Returns
// how many, or -1. It is a write into the process itself: the kernel then copies from the places as it does for any
// call, and pins the pages of `here` alone. process_vm_readv() pins those of each place, which takes twenty times as
// long for a thousand places of fifty bytes.
inline ssize_t read_own(void* here, std::size_t bytes, const iovec* there, unsigned long places) noexcept {
    const iovec into{here, bytes};
    return syscall(SYS_process_vm_writev, getpid(), there, places, &into, 1, 0);
}

}  // namespace hiwater::raw

namespace hiwater::platform {

inline constexpr std::size_t kPageBytes = 4096;

// Copies the process's own memory, which may be gone. False where not all of it was there.
inline bool copy_own(void* into, const void* from, std::size_t bytes) noexcept {
    const iovec there{const_cast<void*>(from), bytes};
    return raw::read_own(into, bytes, &there, 1) == static_cast<ssize_t>(bytes);
}

// --- pages

// Puts pages where all will be written soon. Kernels before 5.14 do not do it in one call: there each page has its
// fault now instead of later. What others write there meanwhile stays.
inline bool put_pages(void* at, std::size_t bytes) noexcept {
    if (raw::madvise(at, bytes, raw::kPopulateWrite) == 0) return true;
    if (errno != EINVAL) return false;
    // LLVM makes a load, or nothing, of an atomic operation that changes no value, but for this one.
    auto* const page = static_cast<volatile unsigned char*>(at);
    for (std::size_t i = 0; i < bytes; i += kPageBytes) {
        unsigned char there = page[i];
        __atomic_compare_exchange_n(page + i, &there, there, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    return true;
}
// Pages of memory that is no file's go back to the kernel, and read as zeros. False where they are locked in memory.
inline bool give_back(void* at, std::size_t bytes) noexcept { return raw::madvise(at, bytes, MADV_DONTNEED) == 0; }
// The same of a mapped file, which keeps what they hold.
inline void give_file_back(void* at, std::size_t bytes) noexcept { raw::madvise(at, bytes, MADV_DONTNEED); }
// A huge page behind a sparse table would cost 2 MiB for a few bytes.
inline void refuse_huge_pages(void* at, std::size_t bytes) noexcept { raw::madvise(at, bytes, MADV_NOHUGEPAGE); }
inline void ask_for_huge_pages(void* at, std::size_t bytes) noexcept { raw::madvise(at, bytes, MADV_HUGEPAGE); }
inline void expect_random_access(void* at, std::size_t bytes) noexcept { raw::madvise(at, bytes, MADV_RANDOM); }
// Whether the child of any kind of fork finds zeros there. Not before Linux 4.14.
inline void wipe_on_fork(void* at, std::size_t bytes, bool is_wiped = true) noexcept {
    raw::madvise(at, bytes, is_wiped ? MADV_WIPEONFORK : MADV_KEEPONFORK);
}
// Makes a mapping longer where it is, or moves it to `place`, which is mapped, in the place of what is there.
// MAP_FAILED where that cannot be.
inline void* lengthen(void* at, std::size_t old_bytes, std::size_t bytes) noexcept {
    return raw::mremap(at, old_bytes, bytes, 0);
}
inline void* move_to(void* place, void* at, std::size_t old_bytes, std::size_t bytes) noexcept {
    return raw::mremap(at, old_bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place);
}

// --- waiting

// Sleeps while the word has this value, until wake(), or for as long at most; it may return early.
inline void wait_while(const void* word, std::uint32_t value, const timespec* at_most = nullptr) noexcept {
    raw::syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, at_most, nullptr, 0);
}
inline void wake(const void* word, int most) noexcept {
    raw::syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0);
}
inline void sleep_for(const timespec& time) noexcept {  // leaves errno alone
    raw::invoke(SYS_nanosleep, raw::word(&time), 0, 0, 0, 0, 0);
}
// Whether pass_barrier() can make every running thread pass a full barrier. Up to 20 ms, once a process.
inline bool prepare_barrier() noexcept {
    return raw::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}
inline bool pass_barrier() noexcept {
    return raw::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

// --- clock

inline constexpr clockid_t kCoarseClock = CLOCK_MONOTONIC_COARSE;

// --- thread

inline std::int32_t thread_number() noexcept { return static_cast<std::int32_t>(raw::syscall(SYS_gettid)); }
inline bool is_main_thread() noexcept { return thread_number() == ::getpid(); }
// Whether the kernel still counts a thread of this process.
inline bool is_thread_left(std::int32_t number) noexcept {
    return raw::syscall(SYS_tgkill, ::getpid(), number, 0) == 0;
}
inline void name_own_thread(const char* name) noexcept { ::prctl(PR_SET_NAME, name); }
inline void read_own_name(char (&name)[16]) noexcept { ::prctl(PR_GET_NAME, name); }

// --- signals

// Which signals are pending for the calling thread alone, signal 1 in the lowest bit. 0 where that is not known.
inline std::uint64_t pending_for_thread() noexcept {
    char text[2048];
    const int saved_errno = errno, file = raw::open("/proc/thread-self/status", O_RDONLY | O_CLOEXEC);
    const ssize_t length = file < 0 ? 0 : raw::read(file, text, sizeof text - 1);
    if (file >= 0) raw::close(file);
    errno = saved_errno;
    text[length < 0 ? 0 : length] = '\0';
    const char* const at = std::strstr(text, "\nSigPnd:");
    return at == nullptr ? 0 : std::strtoull(at + std::strlen("\nSigPnd:"), nullptr, 16);
}
// Takes away one of these that is pending. By its number: the function is a cancellation point. The kernel's set of
// signals is shorter than the C library's.
inline void take_pending(const sigset_t& signals) noexcept {
    const timespec at_once{};
    raw::syscall(SYS_rt_sigtimedwait, &signals, nullptr, &at_once, (SIGRTMAX + 1) / 8);
}

// --- files

// Makes sure that the disk has room for that part of a file. 0 or an errno value. A cancellation point.
inline int allocate(int fd, off_t offset, off_t bytes) noexcept { return ::posix_fallocate(fd, offset, bytes); }
// Gives a file another name, if nothing has that yet. Not every file system knows how: ENOSYS or EINVAL.
inline int rename_to_free_name(const char* from, const char* to) noexcept {
    constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE
    return static_cast<int>(raw::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, kNoReplace));
}
// The C library's function for this is a cancellation point.
inline bool fill_at_random(void* out, std::size_t bytes) noexcept {
    return raw::syscall(SYS_getrandom, out, bytes, GRND_NONBLOCK) == static_cast<long>(bytes);
}

}  // namespace hiwater::platform
