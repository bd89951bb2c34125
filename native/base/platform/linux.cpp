// Facts about processes as Linux shows them, mostly in /proc.
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/main_thread_end.h"
#include "base/process.h"
#include "base/raw_calls.h"

namespace hiwater::process {

namespace {

// Reads a small file whole; the bytes read, or -1. The text ends with NUL.
ssize_t read_file(OwnFile& file, char* out, std::size_t size) noexcept {
    const ssize_t n = OwnFile::Reading(file).read(out, size - 1);
    if (n >= 0) out[n] = '\0';
    return n;
}

ssize_t read_file(const char* path, char* out, std::size_t size) noexcept {
    OwnFile file(path);
    return read_file(file, out, size);
}

std::int64_t kib_after(const char* text, const char* key) noexcept {
    const char* at = ::strstr(text, key);
    return at == nullptr ? -1 : ::strtoll(at + ::strlen(key), nullptr, 10) * 1024;
}

}  // namespace

bool read_status(Resident* out) noexcept {
    char text[4096];
    if (read_file(own_files::status, text, sizeof text) <= 0) return false;
    out->now_bytes = kib_after(text, "VmRSS:");
    out->peak_bytes = kib_after(text, "VmHWM:");
    return out->now_bytes >= 0 && out->peak_bytes >= 0;
}

bool read_shared(Shared* out, pid_t pid) noexcept {
    char path[40], text[4096];
    ::snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
    if ((pid == 0 ? read_file(own_files::shares, text, sizeof text) : read_file(path, text, sizeof text)) <= 0)
        return false;
    const std::int64_t resident = kib_after(text, "\nRss:"), proportional = kib_after(text, "\nPss:");
    const std::int64_t clean = kib_after(text, "\nPrivate_Clean:"), dirty = kib_after(text, "\nPrivate_Dirty:");
    const std::int64_t anonymous = kib_after(text, "\nAnonymous:");
    if (resident < 0 || proportional < 0 || clean < 0 || dirty < 0 || anonymous < 0) return false;
    const std::int64_t excess = std::max<std::int64_t>(0, resident - proportional), mapped = resident - anonymous;
    const std::int64_t alone = kib_after(text, "\nPss_Anon:");
    const std::int64_t of_anonymous = alone < 0 ? excess - mapped : anonymous - alone;
    *out = {excess, clean + dirty, resident, mapped, excess - std::clamp<std::int64_t>(of_anonymous, 0, excess)};
    return true;
}

Sizes read_statm(int fd) noexcept {
    char text[128];
    const ssize_t n = raw::pread(fd, text, sizeof text - 1, 0);
    if (n <= 0) return {};
    text[n] = '\0';
    char* rest = text;
    const auto next_bytes = [&] { return ::strtoll(rest, &rest, 10) * ::sysconf(_SC_PAGESIZE); };
    return {next_bytes(), next_bytes(), next_bytes()};
}

Sizes sizes() noexcept { return read_statm(OwnFile::Reading(own_files::statm).descriptor()); }

bool read_and_reset_resident(const ResidentFiles& files, std::int64_t* lowest_maximum, Resident* out) noexcept {
    struct stat file{};
    if (raw::fstat(files.clear_refs, &file) != 0 || file.st_ino != files.clear_refs_inode ||
        file.st_dev != files.clear_refs_device)
        return false;
    out->now_bytes = read_statm(files.statm).resident_bytes;
    if (out->now_bytes < 0) return false;
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    out->peak_bytes = std::int64_t{usage.ru_maxrss} * 1024;
    if (out->now_bytes < out->peak_bytes && out->peak_bytes <= *lowest_maximum) {
        *lowest_maximum = out->peak_bytes;
        char text[2048];
        const ssize_t n = raw::pread(files.status, text, sizeof text - 1, 0);
        if (n <= 0) return false;
        text[n] = '\0';
        out->peak_bytes = kib_after(text, "VmHWM:");
        if (out->peak_bytes < 0) return false;
    }
    return raw::write(files.clear_refs, "5", 1) == 1;
}

std::int64_t read_number(OwnFile& file) noexcept {
    constexpr std::int64_t kUnlimited = INT64_MAX / 4096 * 4096;  // of cgroup v1, or a page less
    char text[64];
    if (read_file(file, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9') return -1;
    const std::int64_t number = ::strtoll(text, nullptr, 10);
    return number >= kUnlimited - 4096 ? -1 : number;
}

std::int64_t read_entry(OwnFile& file, const char* key) noexcept {
    char text[8192];
    const char* const at = read_file(file, text, sizeof text) <= 0 ? nullptr : ::strstr(text, key);
    return at == nullptr ? -1 : ::strtoll(at + ::strlen(key), nullptr, 10);
}

std::int64_t maximum_resident() noexcept {
    rusage usage{};
    return ::getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss * std::int64_t{1024} : 0;
}

std::int64_t page_faults() noexcept {
    rusage usage{};
    return ::getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_minflt : 0;
}

std::int64_t thread_page_faults() noexcept {
    rusage usage{};
    return ::getrusage(RUSAGE_THREAD, &usage) == 0 ? usage.ru_minflt : 0;
}

std::int64_t available_bytes() noexcept {
    const std::int64_t kib = read_entry(own_files::machine, "MemAvailable:");
    return kib < 0 ? -1 : kib * 1024;
}

bool reset_peak() noexcept {
    const int fd = raw::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool done = raw::write(fd, "5", 1) == 1;
    raw::close(fd);
    return done;
}

std::int64_t peak_error_bytes() noexcept {
    const std::int64_t cpus = ::sysconf(_SC_NPROCESSORS_ONLN);
    const std::int64_t batch = 2 * cpus > 32 ? 2 * cpus : 32;
    return 3 * cpus * batch * ::sysconf(_SC_PAGESIZE);  // file-backed, anonymous and shared pages have a counter each
}

Stat read_stat(pid_t pid) noexcept {
    char path[32] = "/proc/self/stat", text[1024];
    if (pid != 0) ::snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const char* at = read_file(path, text, sizeof text) <= 0 ? nullptr : stat_field(text, 3);
    if (at == nullptr || *at == 'Z' || *at == 'X') return {};
    Stat found;
    if (const char* const faults = stat_field(text, 10)) found.page_faults = ::strtoll(faults, nullptr, 10);
    at = stat_field(text, 20);
    if (at != nullptr) found.threads = static_cast<int>(::strtol(at, nullptr, 10));
    at = stat_field(text, 22);
    if (at != nullptr) found.start_ticks = ::strtoull(at, nullptr, 10);
    if (const char* const resident = stat_field(text, 24)) found.resident_pages = ::strtoll(resident, nullptr, 10);
    return found;
}

void each_number_in(OwnFile& folder, void (*visit)(const char* name, void* context), void* context) {
    struct Entry {  // linux_dirent64
        std::uint64_t inode, next;
        unsigned short bytes;
        unsigned char type;
        char name[1];
    };
    const OwnFile::Reading file(folder);
    const int fd = file.descriptor();
    raw::lseek(fd, 0, SEEK_SET);
    alignas(Entry) char text[8192];
    for (long n; fd >= 0 && (n = raw::syscall(SYS_getdents64, fd, text, sizeof text)) > 0;) {
        for (long at = 0; at < n; at += reinterpret_cast<const Entry*>(text + at)->bytes) {
            const auto* entry = reinterpret_cast<const Entry*>(text + at);
            if (entry->name[0] >= '0' && entry->name[0] <= '9') visit(entry->name, context);
        }
    }
}

int add_children(pid_t parent, pid_t* numbers, int count, int room) noexcept {
    struct Found {
        pid_t parent;
        pid_t* numbers;
        int count, room;
    } found{parent, numbers, count, room};
    char threads[40];
    ::snprintf(threads, sizeof threads, "/proc/%d/task", parent);
    OwnFile folder(threads);
    const auto visit = [](const char* thread, void* context) {
        auto& all = *static_cast<Found*>(context);
        char path[64], text[4096];
        ::snprintf(path, sizeof path, "/proc/%d/task/%.10s/children", all.parent, thread);
        if (read_file(path, text, sizeof text) <= 0) return;
        char* end = nullptr;
        for (const char* at = text; all.count < all.room; at = end) {
            const long number = ::strtol(at, &end, 10);
            if (end == at) break;
            all.numbers[all.count++] = static_cast<pid_t>(number);
        }
    };
    each_number_in(folder, visit, &found);
    return found.count;
}

int descriptors_end() noexcept {
    const std::int64_t end = read_entry(own_files::status, "FDSize:");
    return end < 0 ? INT_MAX : static_cast<int>(end);
}

void read_boot_id(char out[40]) noexcept {
    ::memset(out, 0, 40);
    char text[64];
    if (read_file("/proc/sys/kernel/random/boot_id", text, sizeof text) < 36) return;
    ::memcpy(out, text, 36);
}

}  // namespace hiwater::process
