// What the recorder of Python's objects asks of any POSIX system: the same names as linux.h, by the functions of the C
// library. Where a system has no such thing, the answer is the one for a kernel that is too old for it.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hiwater::raw {

using ::close;
using ::fstat;
using ::ftruncate;
using ::getpid;
using ::lseek;
using ::mmap;
using ::mprotect;
using ::munmap;
using ::pread;
using ::pwrite;
using ::read;
using ::write;

inline int open(const char* path, int flags, mode_t mode = 0) noexcept { return ::open(path, flags, mode); }
inline int open_in(int folder, const char* name, int flags, mode_t mode) noexcept {
    return ::openat(folder, name, flags, mode);
}
inline int unlink_in(int folder, const char* name) noexcept { return ::unlinkat(folder, name, 0); }
inline int fcntl(int fd, int command, int argument) noexcept { return ::fcntl(fd, command, argument); }
inline int mincore(void* at, std::size_t bytes, unsigned char* in_core) noexcept {
#if defined(__APPLE__)
    return ::mincore(at, bytes, reinterpret_cast<char*>(in_core));
#else
    return ::mincore(at, bytes, in_core);
#endif
}

}  // namespace hiwater::raw

namespace hiwater::platform {

#if defined(__APPLE__) && defined(__aarch64__)
inline constexpr std::size_t kPageBytes = 16384;
#else
inline constexpr std::size_t kPageBytes = 4096;
#endif

inline bool copy_own(void*, const void*, std::size_t) noexcept { return false; }

// --- pages

inline bool put_pages(void*, std::size_t) noexcept { return false; }
inline bool give_back(void* at, std::size_t bytes) noexcept {  // new pages in the place of the old ones
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return raw::mmap(at, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) != MAP_FAILED;
}
inline void give_file_back(void* at, std::size_t bytes) noexcept { ::posix_madvise(at, bytes, POSIX_MADV_DONTNEED); }
inline void refuse_huge_pages(void*, std::size_t) noexcept {}
inline void ask_for_huge_pages(void*, std::size_t) noexcept {}
inline void expect_random_access(void* at, std::size_t bytes) noexcept {
    ::posix_madvise(at, bytes, POSIX_MADV_RANDOM);
}
inline void wipe_on_fork(void*, std::size_t, bool = true) noexcept {}  // a fork handler does what can be done
inline void* lengthen(void*, std::size_t, std::size_t) noexcept {
    errno = ENOSYS;
    return MAP_FAILED;
}
inline void* move_to(void* place, void* at, std::size_t old_bytes, std::size_t bytes) noexcept {
    if (!give_back(place, bytes)) return MAP_FAILED;
    std::memcpy(place, at, std::min(old_bytes, bytes));
    raw::munmap(at, old_bytes);
    return place;
}

// --- waiting

inline void sleep_for(const timespec& time) noexcept {
    const int before = errno;
    ::nanosleep(&time, nullptr);
    errno = before;
}
// Looks at the word again and again: no lock of the C library, which a fork could leave locked, and safe in a signal's
// handler.
inline void wait_while(const void* word, std::uint32_t value, const timespec* at_most = nullptr) noexcept {
    constexpr long kNap = 2'000'000, kSecond = 1'000'000'000;
    const auto* const seen = static_cast<const std::uint32_t*>(word);
    std::int64_t left = at_most == nullptr ? kNap : std::int64_t{at_most->tv_sec} * kSecond + at_most->tv_nsec;
    for (; left > 0 && __atomic_load_n(seen, __ATOMIC_ACQUIRE) == value; left -= kNap)
        sleep_for({0, static_cast<long>(std::min<std::int64_t>(left, kNap))});
}
inline void wake(const void*, int) noexcept {}
inline bool prepare_barrier() noexcept { return false; }  // the recorder's lock is never biased
inline bool pass_barrier() noexcept { return false; }

// --- clock

inline constexpr clockid_t kCoarseClock = CLOCK_MONOTONIC;

// --- thread

inline std::int32_t thread_number() noexcept {  // counted in the order in which threads ask
    static std::atomic<std::int32_t> last{0};
    thread_local const std::int32_t mine = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return mine;
}
inline const pthread_t kLoadedBy = ::pthread_self();  // nearly always the main thread
inline bool is_main_thread() noexcept { return ::pthread_equal(::pthread_self(), kLoadedBy) != 0; }
inline bool is_thread_left(std::int32_t) noexcept { return false; }
inline void name_own_thread(const char*) noexcept {}
inline void read_own_name(char (&name)[16]) noexcept { std::memcpy(name, "without name", sizeof "without name"); }

// --- signals

inline std::uint64_t pending_for_thread() noexcept { return 0; }
inline void take_pending(const sigset_t& signals) noexcept {
    int number = 0;
    ::sigwait(&signals, &number);
}

// --- files

inline int allocate(int fd, off_t offset, off_t bytes) noexcept {  // macOS has no posix_fallocate()
    static const char zeros[32 * 1024] = {};
    while (bytes > 0) {
        const ssize_t n = raw::pwrite(fd, zeros, std::min(static_cast<std::size_t>(bytes), sizeof zeros), offset);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : ENOSPC;
        offset += n;
        bytes -= n;
    }
    return 0;
}
inline int rename_to_free_name(const char*, const char*) noexcept {
    errno = ENOSYS;
    return -1;
}
inline bool fill_at_random(void* out, std::size_t bytes) noexcept { return ::getentropy(out, bytes) == 0; }

}  // namespace hiwater::platform
