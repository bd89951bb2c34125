#include "base/own_file.h"

#include <fcntl.h>
#include <limits.h>

#include <array>
#include <utility>

#include "base/errno_kept.h"
#include "base/process.h"
#include "base/raw_calls.h"

namespace hiwater {

namespace {

constexpr std::array kOutOfTheWay{700, 200,
                                  40};  // programs count on low numbers: a daemon closes them, a shell redirects them
std::atomic<int> g_end{0};              // of the numbers that need no larger table; 0: not known yet

int end_of_numbers() noexcept {
    if (g_end.load(std::memory_order_relaxed) == 0) may_enlarge_descriptors(false);
    return g_end.load(std::memory_order_relaxed);
}

}  // namespace

bool FileIdentity::note(int fd) noexcept {
    struct stat about{};
    if (fd < 0 || raw::fstat(fd, &about) != 0) return false;
    device_.store(about.st_dev, std::memory_order_relaxed);
    inode_.store(about.st_ino, std::memory_order_relaxed);
    return true;
}

bool FileIdentity::is_of(int fd) const noexcept {
    const ErrnoKept kept;
    struct stat about{};
    return fd >= 0 && raw::fstat(fd, &about) == 0 &&
           static_cast<std::uint64_t>(about.st_dev) == device_.load(std::memory_order_relaxed) &&
           about.st_ino == inode_.load(std::memory_order_relaxed);
}

void may_enlarge_descriptors(bool may) noexcept {
    g_end.store(may ? INT_MAX : process::descriptors_end(), std::memory_order_relaxed);
}

int open_high(const char* path, int flags, mode_t mode) noexcept {
    const int low = raw::open(path, flags | O_CLOEXEC | O_NOCTTY, mode);
    FileIdentity identity;
    if (!identity.note(low)) return low;
    const ErrnoKept kept;
    for (const int lowest : kOutOfTheWay) {
        if (lowest >= end_of_numbers()) continue;
        const int high = raw::fcntl(low, F_DUPFD_CLOEXEC, lowest);
        if (high < 0) continue;
        if (identity.is_of(low)) raw::close(low);
        return high;
    }
    return low;
}

void OwnFile::release() noexcept {
    // Each user's last read comes before the last one's close.
    if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) close_if_ours(fd_.exchange(-1, std::memory_order_acq_rel));
}

void OwnFile::close_if_ours(int fd) const noexcept {
    if (identity_.is_of(fd)) raw::close(fd);
}

int OwnFile::descriptor() noexcept {
    if (users_.load(std::memory_order_relaxed) == 0) return -1;
    const auto process = raw::getpid();
    const int fd = fd_.load(std::memory_order_acquire);
    return process_.load(std::memory_order_relaxed) == process && identity_.is_of(fd) ? fd : open_again(process);
}

int OwnFile::open_again(pid_t process) noexcept {
    const ErrnoKept kept;
    if (opening_.exchange(process, std::memory_order_acquire) == process) return -1;  // another thread does
    close_if_ours(fd_.exchange(-1, std::memory_order_acq_rel));                       // the parent's
    int fd = open_high(path_, O_RDONLY | flags_);
    if (!identity_.note(fd)) {
        fd = -1;
    } else if (fd < kOutOfTheWay.back()) {  // the program may have few descriptors: see `ulimit -n`
        close_if_ours(std::exchange(fd, -1));
    } else {
        process_.store(process, std::memory_order_relaxed);
        fd_.store(fd, std::memory_order_release);
    }
    opening_.store(0, std::memory_order_release);
    return fd;
}

OwnFile::Reading::Reading(OwnFile& file) noexcept : fd_(file.descriptor()), is_kept_(fd_ >= 0) {
    if (!is_kept_) fd_ = raw::open(file.path_, O_RDONLY | O_CLOEXEC | O_NOCTTY | file.flags_);
}

OwnFile::Reading::~Reading() {
    const ErrnoKept kept;
    if (!is_kept_ && fd_ >= 0) raw::close(fd_);
}

ssize_t OwnFile::Reading::read(void* out, std::size_t bytes, off_t offset) const noexcept {
    return raw::pread(fd_, out, bytes, offset);
}

}  // namespace hiwater
