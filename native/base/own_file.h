// Files that threads of ours read again and again. To open a file takes the lowest free number for a moment, and the
// program may count on that number: `close(0)`, then `open()`. So such files stay open, at numbers out of the program's
// way, from a moment on when a thread of the program is here. Each use makes sure that the number still leads to the
// file: the program may have closed it, and given it to a file of its own.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/uncopied.h"

namespace hiwater {

// Whether a descriptor leads to the file that it led to before.
class FileIdentity {
public:
    bool note(int fd) noexcept;  // false where nothing is open there
    bool is_of(int fd) const noexcept;

private:
    std::atomic<std::uint64_t> device_{0}, inode_{0};
};

// Opens a file at a number out of the program's way, below the end of the table of open files if that can be: where
// there are several threads, the kernel takes some 10 ms to enlarge it. Returns what open() returns, and its errno.
int open_high(const char* path, int flags, mode_t mode = 0) noexcept;
// From now on the table may be enlarged, or may not.
void may_enlarge_descriptors(bool may) noexcept;

class OwnFile : Uncopied {
public:
    explicit constexpr OwnFile(const char* path, int flags = 0) noexcept : path_(path), flags_(flags) {}  // to be read

    // Keeps it open from its next use on, until as many calls of release(). Otherwise it is open while somebody reads.
    void keep() noexcept { users_.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept;
    // Opens it if it is to be kept. For threads of the program, before one of ours uses it.
    void open_if_kept() noexcept { descriptor(); }

    // The open file, while somebody reads.
    class Reading : Uncopied {
    public:
        explicit Reading(OwnFile& file) noexcept;
        ~Reading();
        int descriptor() const noexcept { return fd_; }  // -1: it cannot be read
        ssize_t read(void* out, std::size_t bytes, off_t offset = 0) const noexcept;

    private:
        int fd_;
        const bool is_kept_;
    };

private:
    int descriptor() noexcept;  // the one that is kept, or -1
    int open_again(pid_t process) noexcept;
    void close_if_ours(int fd) const noexcept;

    const char* const path_;
    const int flags_;
    std::atomic<int> users_{0}, fd_{-1};
    std::atomic<pid_t> process_{0};  // that opened it: in /proc the files of a fork's child are others
    std::atomic<pid_t> opening_{0};  // the process in which a thread is about to open it
    FileIdentity identity_;
};

namespace own_files {

inline constinit OwnFile statm("/proc/self/statm"), status("/proc/self/status"), shares("/proc/self/smaps_rollup"),
    areas("/proc/self/maps"), areas_with_pages("/proc/self/smaps"), pages("/proc/self/pagemap"),
    threads("/proc/self/task"), machine("/proc/meminfo");

inline constexpr OwnFile* kOfSampler[] = {&statm, &status,  &shares, &areas, &areas_with_pages,
                                          &pages, &threads, &machine};

}  // namespace own_files

}  // namespace hiwater
