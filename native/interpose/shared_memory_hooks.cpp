#include "interpose/shared_memory_hooks.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <atomic>
#include <cstdint>

#include "base/errno_kept.h"
#include "session/recorder.h"
#include "interpose/real.h"

namespace hiwater::interpose {

namespace {

constexpr long kTmpfs = 0x01021994, kHugetlbfs = 0x958458f6;

enum class Which { every, empty };

// The object of shared memory that a file is. Without a name for any other file, and for one with a size where only empty ones are asked for.
SharedObject object_of(int fd, Which which) noexcept {
    const ErrnoKept kept;
    SharedObject object;
    struct stat about{};
    const bool is_asked_for = ::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && (which == Which::every || about.st_size == 0);
    if (is_asked_for && is_memory_file(fd, about.st_dev)) object = {about.st_dev, about.st_ino};
    return object;
}

int made(int fd) noexcept {
    if (fd < 0 || !recording()) return fd;
    const SharedObject object = object_of(fd, Which::every);
    if (object.is_named()) Recorder::instance().on_shared_object(object);
    return fd;
}

bool makes_anew(int flags) noexcept {
    return (flags & O_TRUNC) != 0 || (flags & O_TMPFILE) == O_TMPFILE || (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL);
}

template <typename Call>
int sized(int fd, std::int64_t bytes, Call call) {
    const SharedObject object = recording() && bytes > 0 ? object_of(fd, Which::empty) : SharedObject{};
    const int result = call();
    if (result == 0 && object.is_named()) Recorder::instance().on_shared_object(object);
    return result;
}

}  // namespace

// On a network file system fstatfs() may ask the server: it is asked once for a device, and not at all for disks.
bool is_memory_file(int fd, dev_t device) noexcept {
    static std::atomic<dev_t> last_memory{0}, last_other{0};
    if (major(device) != 0) return false;
    if (device == last_memory.load(std::memory_order_relaxed)) return true;
    if (device == last_other.load(std::memory_order_relaxed)) return false;
    struct statfs system{};
    if (::fstatfs(fd, &system) != 0) return false;
    const bool is_memory = system.f_type == kTmpfs || system.f_type == kHugetlbfs;
    (is_memory ? last_memory : last_other).store(device, std::memory_order_relaxed);
    return is_memory;
}

int hook_memfd_create(const char* name, unsigned int flags) { return made(real.memfd_create(name, flags)); }

int hook_shm_open(const char* name, int flags, mode_t mode) {
    const int fd = real.shm_open(name, flags, mode);
    return makes_anew(flags) ? made(fd) : fd;
}

// The mode is passed on whether there is one or not: the C library looks at it where the flags say that there is.
#define HIWATER_OPENED(call)                     \
    va_list arguments;                           \
    va_start(arguments, flags);                  \
    const auto mode = va_arg(arguments, mode_t); \
    va_end(arguments);                           \
    const int fd = call;                         \
    return makes_anew(flags) ? made(fd) : fd

int hook_open(const char* path, int flags, ...) { HIWATER_OPENED(real.open(path, flags, mode)); }
int hook_open64(const char* path, int flags, ...) { HIWATER_OPENED(real.open64(path, flags, mode)); }
int hook_openat(int folder, const char* path, int flags, ...) { HIWATER_OPENED(real.openat(folder, path, flags, mode)); }
int hook_openat64(int folder, const char* path, int flags, ...) { HIWATER_OPENED(real.openat64(folder, path, flags, mode)); }

#undef HIWATER_OPENED

int hook_ftruncate(int fd, off_t bytes) {
    return sized(fd, bytes, [&] { return real.ftruncate(fd, bytes); });
}
int hook_ftruncate64(int fd, off64_t bytes) {
    return sized(fd, bytes, [&] { return real.ftruncate64(fd, bytes); });
}
int hook_fallocate(int fd, int mode, off_t offset, off_t bytes) {
    return sized(fd, bytes, [&] { return real.fallocate(fd, mode, offset, bytes); });
}
int hook_fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
    return sized(fd, bytes, [&] { return real.fallocate64(fd, mode, offset, bytes); });
}
int hook_posix_fallocate(int fd, off_t offset, off_t bytes) {
    return sized(fd, bytes, [&] { return real.posix_fallocate(fd, offset, bytes); });
}
int hook_posix_fallocate64(int fd, off64_t offset, off64_t bytes) {
    return sized(fd, bytes, [&] { return real.posix_fallocate64(fd, offset, bytes); });
}

}  // namespace hiwater::interpose
