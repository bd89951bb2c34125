#include "shared_memory_hooks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "../base/errno_kept.h"
#include "../recorder.h"
#include "real.h"

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
    if (is_asked_for && is_memory_file(fd)) object = {about.st_dev, about.st_ino};
    return object;
}

int made(int fd) noexcept {
    if (fd < 0 || !recording()) return fd;
    const SharedObject object = object_of(fd, Which::every);
    if (object.is_named()) Recorder::instance().on_shared_object(object);
    return fd;
}

template <typename Call>
int sized(int fd, std::int64_t bytes, Call call) {
    const SharedObject object = recording() && bytes > 0 ? object_of(fd, Which::empty) : SharedObject{};
    const int result = call();
    if (result == 0 && object.is_named()) Recorder::instance().on_shared_object(object);
    return result;
}

}  // namespace

bool is_memory_file(int fd) noexcept {
    struct statfs system{};
    return ::fstatfs(fd, &system) == 0 && (system.f_type == kTmpfs || system.f_type == kHugetlbfs);
}

int hook_memfd_create(const char* name, unsigned int flags) { return made(real.memfd_create(name, flags)); }

int hook_shm_open(const char* name, int flags, mode_t mode) {
    const int fd = real.shm_open(name, flags, mode);
    const bool is_new = (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL) || (flags & O_TRUNC) != 0;
    return is_new ? made(fd) : fd;
}

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
