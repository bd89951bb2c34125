#include "capture/placement.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/process.h"
#include "base/own_file.h"
#include "base/raw_calls.h"
#include "capture/format.h"

namespace hiwater::capture {

namespace {

constexpr int kTries = 500;
constexpr timespec kBetweenTries{0, 2'000'000};

// Of another machine, or of a container with a clock of its own: its recorder writes a sign of life into the header
// many times a second, which a network file system passes on within seconds.
constexpr std::uint64_t kSilenceOfTheDeadNs = 60'000'000'000;

bool is_alive(const Header& h) noexcept {
    char boot[40];
    process::read_boot_id(boot);
    const bool still_recording = h.state == static_cast<std::uint32_t>(State::recording);
    if (::memcmp(boot, h.boot_id, sizeof boot) != 0)
        return still_recording && process::wall_ns() - (h.started_unix_ns + h.heartbeat_ns) < kSilenceOfTheDeadNs;
    const auto pid = static_cast<pid_t>(h.pid);
    if (pid == ::getpid()) return false;
    return ::kill(pid, 0) == 0 || errno == EPERM ? process::read_stat(pid).start_ticks == h.process_start_ticks : false;
}

bool read_header(int fd, Header* out) noexcept {
    if (raw::pread(fd, out, sizeof *out, 0) != static_cast<ssize_t>(sizeof *out)) return false;
    return ::memcmp(out->magic, kMagic, sizeof out->magic) == 0 && is_known(out->version);
}

bool is_of_living_process(int fd) noexcept {
    Header h;
    return read_header(fd, &h) && is_alive(h);
}

// Within a version the header may have got fields: a capture names those that it has.
bool has_field(int fd, const char* name) noexcept {
    char schema[kSchemaBytes];
    const ssize_t n = raw::pread(fd, schema, sizeof schema - 1, kHeaderBytes);
    schema[n < 0 ? 0 : n] = '\0';
    return ::strstr(schema, name) != nullptr;
}

// For file systems that know neither of the two ways to take a free name: an empty file takes it, which is then
// replaced as any is.
bool take_name(const char* path) noexcept {
    const int fd = raw::open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd < 0) return false;
    raw::close(fd);
    errno = EEXIST;
    return false;
}

// Returns whether `made` has a name now that nothing had; errno is EEXIST where something has it.
bool move_to_free_name(const char* made, const char* path) noexcept {
    if (platform::rename_to_free_name(made, path) == 0) return true;
    if (errno != ENOSYS && errno != EINVAL) return false;
    if (::link(made, path) == 0) return ::unlink(made) == 0;
    return errno == EEXIST || errno == ENOENT ? false : take_name(path);
}

// With the file at `path` open: whoever replaces it holds its lock, and then sees whether it is still there. EAGAIN:
// look again.
int replace(int fd, const char* made, const char* path) noexcept {
    struct stat about{};
    if (raw::fstat(fd, &about) != 0) return errno;
    if (!S_ISREG(about.st_mode)) return EEXIST;
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return EAGAIN;  // others: a file system without locks
    if (!is_at(path, about.st_dev, about.st_ino)) return EAGAIN;
    if (is_of_living_process(fd)) return EBUSY;
    return ::rename(made, path) == 0 ? 0 : errno;
}

}  // namespace

bool PathBuffer::set(const char* path) noexcept {
    const std::size_t length = ::strlen(path);
    if (length >= sizeof text) return false;
    ::memcpy(text, path, length + 1);
    return true;
}

bool is_at(const char* path, dev_t device, ino_t inode) noexcept {
    struct stat about{};
    return ::lstat(path, &about) == 0 && about.st_dev == device && about.st_ino == inode;
}

bool read_ending(const char* path, Ending* out) noexcept {
    const int fd = raw::open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return false;
    Header h;
    const bool is_found = read_header(fd, &h) && !is_alive(h);
    if (is_found) {
        const bool knows_limit = has_field(fd, "\"nearest_limit_bytes\"");
        char boot[40];
        process::read_boot_id(boot);
        const int signal = has_field(fd, "\"end_signal\"") ? static_cast<int>(h.end_signal) : 0;
        const bool is_orderly =
            signal == 0 && (h.state != static_cast<std::uint32_t>(State::recording) || h.ended_ns != 0);
        *out = {h.pid,
                h.started_unix_ns + (h.ended_ns != 0 ? h.ended_ns : h.heartbeat_ns),
                h.resident_peak_bytes,
                knows_limit ? h.nearest_used_bytes : 0,
                knows_limit ? h.nearest_limit_bytes : 0,
                is_orderly,
                ::memcmp(boot, h.boot_id, sizeof boot) == 0,
                signal};
    }
    raw::close(fd);
    return is_found;
}

int create_temporary(const char* path, mode_t mode, PathBuffer* made) noexcept {
    static std::atomic<unsigned> serial{0};
    const char* slash = ::strrchr(path, '/');
    const int folder = slash == nullptr ? 0 : static_cast<int>(slash - path) + 1;
    for (int i = 0; i < kTries; ++i) {
        const int n =
            ::snprintf(made->text, sizeof made->text, "%.*s.hiwater-%d-%u", folder, path, ::getpid(), serial++);
        if (n >= static_cast<int>(sizeof made->text)) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int fd = open_high(made->text, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
        if (fd >= 0) {
            ::fchmod(fd, mode);  // whatever the umask is; a file system without permissions needs none
            return fd;
        }
        if (errno != EEXIST) return -1;  // left by a process of this number that was killed
    }
    return -1;
}

int place(const char* made, const char* path, Over over) noexcept {
    for (int i = 0; i < kTries; ++i) {
        if (move_to_free_name(made, path)) return 0;
        if (errno != EEXIST) return errno;
        if (over == Over::nothing) return EBUSY;
        const int fd = raw::open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd < 0 && errno == ENOENT) continue;
        if (fd < 0) return errno;
        const int error = replace(fd, made, path);
        raw::close(fd);
        if (error != EAGAIN) return error;
        ::nanosleep(&kBetweenTries, nullptr);
    }
    return EBUSY;
}

int place_or_evade(const char* made, const char* path, PathBuffer* placed, Over over) noexcept {
    if (!placed->set(path)) return ENAMETOOLONG;
    int error = place(made, path, over);
    const char* slash = ::strrchr(path, '/');
    const char* suffix = ::strrchr(slash == nullptr ? path : slash, '.');
    if (suffix == nullptr || suffix == path || (slash != nullptr && suffix == slash + 1))
        suffix = path + ::strlen(path);
    const int stem = static_cast<int>(suffix - path);
    for (int i = 1; error == EBUSY && i < 100; ++i) {
        char number[16] = "";
        if (i > 1) ::snprintf(number, sizeof number, "-%d", i);
        const int n =
            ::snprintf(placed->text, sizeof placed->text, "%.*s.%d%s%s", stem, path, ::getpid(), number, suffix);
        if (n >= static_cast<int>(sizeof placed->text)) return ENAMETOOLONG;
        error = place(made, placed->text, over);
    }
    return error;
}

}  // namespace hiwater::capture
