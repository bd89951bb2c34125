#include "base/raw_calls.h"
#include "interpose/hooks.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <atomic>
#include <cstdint>

#include "base/errno_kept.h"
#include "session/recorder.h"

namespace hiwater::interpose {

namespace {

constexpr long kTmpfs = 0x01021994, kHugetlbfs = 0x958458f6;

enum class Which { every, empty };

// The object of shared memory that a file is. Without a name for any other file, and for one with a size where `which`
// is `empty`.
SharedObject object_of(int fd, Which which) noexcept {
    const ErrnoKept kept;
    SharedObject object;
    struct stat about{};
    const bool is_asked_for =
        raw::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && (which == Which::every || about.st_size == 0);
    if (is_asked_for && is_memory_file(fd, about.st_dev)) object = {about.st_dev, about.st_ino};
    return object;
}

int made(int fd) noexcept {
    if (fd < 0 || !recording()) return fd;
    const SharedObject object = object_of(fd, Which::every);
    if (object.is_named()) recorder().on_shared_object(object);
    return fd;
}

bool makes_anew(int flags) noexcept {
    return (flags & O_TRUNC) != 0 || (flags & O_TMPFILE) == O_TMPFILE ||
           (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL);
}

template <typename Call>
int sized(int fd, std::int64_t bytes, Call call) {
    const SharedObject object = recording() && bytes > 0 ? object_of(fd, Which::empty) : SharedObject{};
    const int result = call();
    if (result == 0 && object.is_named()) recorder().on_shared_object(object);
    return result;
}

}  // namespace

// On a network file system fstatfs() may call the server: it is called once for each device, and never for disks.
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

namespace {

int hook_memfd_create(const char* name, unsigned int flags) { return made(real<hook_memfd_create>(name, flags)); }

int hook_shm_open(const char* name, int flags, mode_t mode) {
    const int fd = real<hook_shm_open>(name, flags, mode);
    return makes_anew(flags) ? made(fd) : fd;
}

// The argument behind the flags of open(). It is read and passed on even where the caller gave none: the C library
// ignores it then.
#define HIWATER_MODE_AFTER(flags)                \
    va_list arguments;                           \
    va_start(arguments, flags);                  \
    const auto mode = va_arg(arguments, mode_t); \
    va_end(arguments)

// Each of these functions has a second name that ends in 64.
template <int kEntry>
int hook_open(const char* path, int flags, ...) {
    HIWATER_MODE_AFTER(flags);
    const int fd = real<hook_open<kEntry>>(path, flags, mode);
    return makes_anew(flags) ? made(fd) : fd;
}
template <int kEntry>
int hook_openat(int folder, const char* path, int flags, ...) {
    HIWATER_MODE_AFTER(flags);
    const int fd = real<hook_openat<kEntry>>(folder, path, flags, mode);
    return makes_anew(flags) ? made(fd) : fd;
}

#undef HIWATER_MODE_AFTER

template <int kEntry>
int hook_ftruncate(int fd, off_t bytes) {
    return sized(fd, bytes, [&] { return real<hook_ftruncate<kEntry>>(fd, bytes); });
}
template <int kEntry>
int hook_fallocate(int fd, int mode, off_t offset, off_t bytes) {
    return sized(fd, bytes, [&] { return real<hook_fallocate<kEntry>>(fd, mode, offset, bytes); });
}
template <int kEntry>
int hook_posix_fallocate(int fd, off_t offset, off_t bytes) {
    return sized(fd, bytes, [&] { return real<hook_posix_fallocate<kEntry>>(fd, offset, bytes); });
}

}  // namespace

void add_shared_memory_hooks(std::vector<Hook>* hooks) {
    constexpr auto of = Hook::Of::mappings;
    hooks->insert(hooks->end(), {
                                    hook_of<hook_memfd_create>("memfd_create", of),
                                    hook_of<hook_shm_open>("shm_open", of),
                                    hook_of<hook_open<0>>("open", of),
                                    hook_of<hook_open<1>>("open64", of),
                                    hook_of<hook_openat<0>>("openat", of),
                                    hook_of<hook_openat<1>>("openat64", of),
                                    hook_of<hook_ftruncate<0>>("ftruncate", of),
                                    hook_of<hook_ftruncate<1>>("ftruncate64", of),
                                    hook_of<hook_fallocate<0>>("fallocate", of),
                                    hook_of<hook_fallocate<1>>("fallocate64", of),
                                    hook_of<hook_posix_fallocate<0>>("posix_fallocate", of),
                                    hook_of<hook_posix_fallocate<1>>("posix_fallocate64", of),
                                });
}

}  // namespace hiwater::interpose
