#include "interpose/libraries.h"

#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>

#include "base/signals_blocked.h"

namespace hiwater::interpose {

namespace {

struct Library {
    std::uintptr_t start = 0, end = 0;
    char name[96] = {};
};

// Entries are added, by one thread at a time, and then stand still until a recording begins.
constexpr std::size_t kMost = 256;
Library g_libraries[kMost];
std::atomic<std::size_t> g_count{0};
std::atomic_flag g_adding;

bool starts(const char* text, const char* head) noexcept { return ::strncmp(text, head, ::strlen(head)) == 0; }

bool is_told_by_the_stack(const char* path, const char* file) noexcept {
    char program[512];
    const long n = ::syscall(SYS_readlink, "/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    return path[0] != '/' || ::strcmp(path, program) == 0 || ::strstr(path, "/lib-dynload/") != nullptr ||
           starts(file, "libpython") || starts(file, "libc.so") || starts(file, "libc-") || starts(file, "libffi") ||
           starts(file, "libpthread");
}

// "start-end mode offset device inode   path"; false where the address is not in it.
bool read_line(const char* line, std::uintptr_t address, Library* out) noexcept {
    unsigned long start = 0, end = 0;
    int path_at = 0;
    if (std::sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &start, &end, &path_at) < 2) return false;
    if (address < start || address >= end) return false;
    const char* path = path_at > 0 ? line + path_at : "";
    const char* slash = ::strrchr(path, '/');
    const char* file = slash == nullptr ? path : slash + 1;
    out->start = start;
    out->end = end;
    std::snprintf(out->name, sizeof out->name, "%s", is_told_by_the_stack(path, file) ? "" : file);
    return true;
}

// System calls of our own: the C library's read() is a point at which a thread may be cancelled.
bool find_in_maps(std::uintptr_t address, Library* out) noexcept {
    const long fd = ::syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    char block[4096], line[1024];
    std::size_t length = 0;
    bool found = false;
    for (long n; !found && (n = ::syscall(SYS_read, fd, block, sizeof block)) > 0;) {
        for (long i = 0; i < n && !found; ++i) {
            if (block[i] != '\n') {
                if (length < sizeof line - 1) line[length++] = block[i];
                continue;
            }
            line[length] = '\0';
            length = 0;
            found = read_line(line, address, out);
        }
    }
    ::syscall(SYS_close, fd);
    return found;
}

const Library* known(std::uintptr_t address) noexcept {
    const std::size_t count = g_count.load(std::memory_order_acquire);
    for (const Library* library = g_libraries; library != g_libraries + count; ++library)
        if (address >= library->start && address < library->end) return library;
    return nullptr;
}

const Library* add(std::uintptr_t address) noexcept {
    const SignalsBlocked blocked;  // a handler that jumped out would leave the flag set and the file open
    if (g_adding.test_and_set(std::memory_order_acquire)) return nullptr;  // another thread's: this one's mapping has no name
    const Library* library = known(address);
    const std::size_t count = g_count.load(std::memory_order_relaxed);
    if (library == nullptr && count < kMost && find_in_maps(address, &g_libraries[count])) {
        library = &g_libraries[count];
        g_count.store(count + 1, std::memory_order_release);
    }
    g_adding.clear(std::memory_order_release);
    return library;
}

}  // namespace

void name_library_of(const void* code, char* name, std::size_t size) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(code);
    const Library* library = known(address);
    if (library == nullptr) library = add(address);
    std::snprintf(name, size, "%s", library == nullptr ? "" : library->name);
}

void forget_libraries() noexcept { g_count.store(0, std::memory_order_release); }

}  // namespace hiwater::interpose
