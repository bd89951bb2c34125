#include "base/raw_calls.h"
#include "interpose/hooks.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errno_kept.h"
#include "session/recorder.h"
#include "interpose/libraries.h"

namespace hiwater::interpose {

namespace {

using capture::Kind;

// What sort of memory a mapping is; for one with a file, the file's name in `label`, and which object it is if it is
// shared memory.
Kind classify(int protection, int flags, int fd, char* label, std::size_t label_size, SharedObject* object) noexcept {
    label[0] = '\0';
    const bool shared = (flags & MAP_TYPE) != MAP_PRIVATE;
    if ((flags & MAP_ANONYMOUS) != 0) {
        if (shared) return Kind::shared;
        return protection == PROT_NONE ? Kind::reserved : Kind::mapping;
    }
    const ErrnoKept kept;
    char link[64];
    ::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = ::readlink(link, label, label_size - 1);
    label[n > 0 ? n : 0] = '\0';
    struct stat about{};
    Kind kind = Kind::file;
    if (raw::fstat(fd, &about) == 0 && S_ISCHR(about.st_mode) && about.st_rdev == ((1 << 8) | 5)) {  // /dev/zero
        kind = shared ? Kind::shared : protection == PROT_NONE ? Kind::reserved : Kind::mapping;
    } else if (shared && is_memory_file(fd, about.st_dev)) {
        kind = Kind::attached;
        *object = {about.st_dev, about.st_ino};
    }
    return kind;
}

// A mapping that a library made is labelled with the library: Python's stack alone does not distinguish its allocator
// from others.
void label_by_caller(const void* caller, char* label, std::size_t size) noexcept {
    const ErrnoKept kept;
    name_library_of(caller, label + kMappedBy.size(), size - kMappedBy.size());
    if (label[kMappedBy.size()] == '\0') {
        label[0] = '\0';
    } else {
        ::memcpy(label, kMappedBy.data(), kMappedBy.size());
    }
}

void count_mapping(void* at, std::size_t bytes, int protection, int flags, int fd, std::int64_t offset,
                   const void* caller) noexcept {
    char label[512];
    SharedObject object;
    const Kind kind = classify(protection, flags, fd, label, sizeof label, &object);
    if (label[0] == '\0' && kind != Kind::file && kind != Kind::attached) label_by_caller(caller, label, sizeof label);
    recorder().on_map(reinterpret_cast<std::uintptr_t>(at), round_up(bytes, kPage),
                      {kind, static_cast<std::uint32_t>(protection), label[0] == '\0' ? nullptr : label, object,
                       static_cast<std::uint64_t>(offset) / kPage});
}

// The result of mmap().
void note_mmap(void* at, std::size_t bytes, int protection, int flags, int fd, std::int64_t offset,
               const void* caller) noexcept {
    if (!watching()) return;
    if (at != MAP_FAILED) {
        count_mapping(at, bytes, protection, flags, fd, offset, caller);
    } else if (errno == ENOMEM) {
        recorder().on_refused(bytes);
    }
}

template <int kEntry>  // mmap and mmap64
void* hook_mmap(void* hint, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
    void* at = real<hook_mmap<kEntry>>(hint, bytes, protection, flags, fd, offset);
    note_mmap(at, bytes, protection, flags, fd, offset, __builtin_return_address(0));
    return at;
}

int hook_munmap(void* at, std::size_t bytes) {
    if (!recording()) return real<hook_munmap>(at, bytes);
    if (bytes >= Recorder::kLargeChange) recorder().before_release(bytes);
    TakenRange taken;
    recorder().take_range(reinterpret_cast<std::uintptr_t>(at), round_up(bytes, kPage), &taken);
    const int result = real<hook_munmap>(at, bytes);
    if (result != 0) recorder().put_back_range(taken);
    if (bytes >= Recorder::kLargeChange) recorder().after_release();
    spare_room.refill();
    return result;
}

void* hook_mremap(void* old, std::size_t old_bytes, std::size_t bytes, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    void* fixed = va_arg(arguments, void*);
    va_end(arguments);
    if (!watching()) return real<hook_mremap>(old, old_bytes, bytes, flags, fixed);
    TakenRange taken;
    const bool leaves_old = old_bytes == 0;  // a second mapping of the same pages
    if (leaves_old) {
        recorder().find_range(reinterpret_cast<std::uintptr_t>(old), &taken);
    } else {
        recorder().take_range(reinterpret_cast<std::uintptr_t>(old), round_up(old_bytes, kPage), &taken);
    }
    void* at = real<hook_mremap>(old, old_bytes, bytes, flags, fixed);
    if (at == MAP_FAILED) {
        if (!leaves_old) recorder().put_back_range(taken);
        if (errno == ENOMEM) recorder().on_refused(bytes);
    } else {
        recorder().on_moved(taken, reinterpret_cast<std::uintptr_t>(at), round_up(bytes, kPage));
#if defined(MREMAP_DONTUNMAP)
        // The old range stays mapped, with nothing in it.
        if (!leaves_old && (flags & MREMAP_DONTUNMAP) != 0) recorder().put_back_range(taken);
#endif
    }
    return at;
}

int hook_mprotect(void* at, std::size_t bytes, int protection) {
    const int result = real<hook_mprotect>(at, bytes, protection);
    if (result == 0 && watching())
        recorder().on_protect(reinterpret_cast<std::uintptr_t>(at), round_up(bytes, kPage),
                              static_cast<std::uint32_t>(protection));
    return result;
}

void* hook_shmat(int id, const void* hint, int flags) {
    void* at = real<hook_shmat>(id, hint, flags);
    if (at == reinterpret_cast<void*>(-1) || !watching()) return at;
    const ErrnoKept kept;
    shmid_ds about{};
    char label[48];
    ::snprintf(label, sizeof label, "System V segment %d", id);
    if (::shmctl(id, IPC_STAT, &about) == 0) {
        const Kind kind = about.shm_cpid == ::getpid() ? Kind::shared : Kind::attached;
        recorder().on_map(reinterpret_cast<std::uintptr_t>(at), round_up(about.shm_segsz, kPage),
                          {kind, PROT_READ, label, {SharedObject::kSystemV, static_cast<std::uint64_t>(id)}});
    }
    return at;
}

int hook_shmdt(const void* at) {
    if (!recording()) return real<hook_shmdt>(at);
    const auto start = reinterpret_cast<std::uintptr_t>(at);
    const std::uintptr_t end = recorder().range_end(start);
    TakenRange taken;
    if (end != 0) recorder().take_range(start, end - start, &taken);
    const int result = real<hook_shmdt>(at);
    if (result != 0) recorder().put_back_range(taken);
    return result;
}

// Counts the bytes by which the program itself moves the break. The C library's own moves belong to malloc and are not
// seen here.
void count_break(std::uintptr_t before, std::uintptr_t after) noexcept {
    if (after > before)
        return recorder().on_map(before, after - before, {Kind::mapping, PROT_READ | PROT_WRITE, "program break"});
    TakenRange gone;
    if (after < before) recorder().take_range(after, before - after, &gone);
}

void* hook_sbrk(intptr_t bytes) {
    void* before = real<hook_sbrk>(bytes);
    if (bytes != 0 && before != reinterpret_cast<void*>(-1) && watching()) {
        const auto at = reinterpret_cast<std::uintptr_t>(before);
        count_break(at, at + static_cast<std::uintptr_t>(bytes));
    }
    return before;
}

int hook_brk(void* to) {
    const auto before = reinterpret_cast<std::uintptr_t>(real<hook_sbrk>(0));
    const int result = real<hook_brk>(to);
    if (result == 0 && watching()) count_break(before, reinterpret_cast<std::uintptr_t>(to));
    return result;
}

}  // namespace

void add_mapping_hooks(std::vector<Hook>* hooks) {
    using Of = Hook::Of;
    hooks->insert(hooks->end(), {
                                    hook_of<hook_mmap<0>>("mmap", Of::mappings),
                                    hook_of<hook_mmap<1>>("mmap64", Of::mappings),
                                    hook_of<hook_munmap>("munmap", Of::mappings),
                                    hook_of<hook_mremap>("mremap", Of::mappings),
                                    hook_of<hook_mprotect>("mprotect", Of::mappings),
                                    hook_of<hook_shmat>("shmat", Of::process),
                                    hook_of<hook_shmdt>("shmdt", Of::process),
                                    hook_of<hook_brk>("brk", Of::mappings),
                                    hook_of<hook_sbrk>("sbrk", Of::mappings),
                                });
}

}  // namespace hiwater::interpose
