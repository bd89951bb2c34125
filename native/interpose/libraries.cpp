#include "interpose/libraries.h"

#include <string.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "base/proc_lines.h"
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

bool is_told_by_the_stack(std::string_view path, std::string_view file) noexcept {
    char program[512];
    const ssize_t n = ::readlink("/proc/self/exe", program, sizeof program);
    if (!path.starts_with('/') || path == std::string_view(program, n > 0 ? static_cast<std::size_t>(n) : 0))
        return true;
    return path.find("/lib-dynload/") != path.npos || file.starts_with("libpython") || file.starts_with("libc.so") ||
           file.starts_with("libc-") || file.starts_with("libffi") || file.starts_with("libpthread");
}

bool find_in_maps(std::uintptr_t address, Library* out) noexcept {
    OwnFile maps("/proc/self/maps");
    ProcLines<4096> lines(maps);
    MapsLine mapping;
    do {
        const char* line = lines.next();
        if (line == nullptr) return false;
        mapping = {};
        mapping.read(line);
    } while (address < mapping.start || address >= mapping.end);
    const char* slash = ::strrchr(mapping.path, '/');
    const char* file = slash == nullptr ? mapping.path : slash + 1;
    out->start = mapping.start;
    out->end = mapping.end;
    std::snprintf(out->name, sizeof out->name, "%s", is_told_by_the_stack(mapping.path, file) ? "" : file);
    return true;
}

const Library* known(std::uintptr_t address) noexcept {
    const std::size_t count = g_count.load(std::memory_order_acquire);
    for (const Library* library = g_libraries; library != g_libraries + count; ++library)
        if (address >= library->start && address < library->end) return library;
    return nullptr;
}

const Library* add(std::uintptr_t address) noexcept {
    const SignalsBlocked blocked;  // a handler that jumped out would leave the flag set and the file open
    if (g_adding.test_and_set(std::memory_order_acquire))
        return nullptr;  // another thread's: this one's mapping has no name
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
