#include "residency/areas.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/proc_lines.h"
#include "base/raw_calls.h"
#include "residency/page_flags.h"

namespace hiwater::residency {

namespace {

using Lines = ProcLines<16384>;

constexpr std::uintptr_t kMallocHeap = 64 << 20;  // HEAP_MAX_SIZE of glibc on 64-bit machines

Area::Path path_of(std::string_view path, char sharing) noexcept {
    if (sharing == 's' || path.starts_with("/dev/shm/") || path.starts_with("/memfd:") || path.starts_with("/SYSV") ||
        path.starts_with("/dev/zero"))
        return Area::Path::shared;
    if (path.starts_with('/')) return Area::Path::file;
    if (path.empty() || path.starts_with("[anon:")) return Area::Path::none;
    if (path.starts_with("[heap]")) return Area::Path::heap;
    return path.starts_with("[stack") ? Area::Path::stack : Area::Path::other;
}

bool read_head(const char* line, Area* out) noexcept {
    MapsLine head;
    if (!head.read(line)) return false;
    *out = {.start = head.start, .end = head.end, .path = path_of(head.path, head.mode[3])};
    out->writable = std::string_view(head.mode).starts_with("rw") && head.mode[3] == 'p';
    out->inaccessible = std::string_view(head.mode).starts_with("---");
    return true;
}

void read_smaps(PageVector<Area>* out) {
    PageVector<Area>& found = *out;
    Lines lines("/proc/self/smaps");
    for (char* line = lines.next(); line != nullptr; line = lines.next()) {
        Area area;
        if (line[0] >= 'A' && line[0] <= 'Z') {
            if (found.size() != 0 && std::string_view(line).starts_with("Rss:"))
                found[found.size() - 1].resident = ::strtoll(line + 4, nullptr, 10) * 1024;
        } else if (read_head(line, &area)) {
            if (found.size() != 0 && found[found.size() - 1].end == area.start) {
                area.follows_file = found[found.size() - 1].path == Area::Path::file && found[found.size() - 1].writable;
                found[found.size() - 1].malloc_heap = area.inaccessible && found[found.size() - 1].start % kMallocHeap == 0;
            }
            found.push_back(area);
        }
    }
}

// Where the stack of a waiting thread is; 0 for a running thread, of which the kernel does not show it.
std::uintptr_t stack_pointer(const char* thread) noexcept {
    char path[64];
    ::snprintf(path, sizeof path, "/proc/self/task/%.20s/syscall", thread);
    Lines lines(path);
    const char* line = lines.next();
    const char* last = line == nullptr ? nullptr : ::strrchr(line, ' ');
    if (last == nullptr) return 0;
    while (last > line && last[-1] != ' ') --last;  // the stack pointer is the last but one
    return ::strtoul(last, nullptr, 16);
}

// readdir() would take a buffer from the heap.
void stack_pointers(PageVector<std::uintptr_t>* out) {
    struct Entry {  // linux_dirent64
        std::uint64_t inode, next;
        unsigned short bytes;
        unsigned char type;
        char name[1];
    };
    const int fd = raw::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    alignas(Entry) char text[8192];
    for (long n; fd >= 0 && (n = raw::syscall(SYS_getdents64, fd, text, sizeof text)) > 0;) {
        for (long at = 0; at < n; at += reinterpret_cast<const Entry*>(text + at)->bytes) {
            const auto* entry = reinterpret_cast<const Entry*>(text + at);
            if (entry->name[0] == '.') continue;
            if (const std::uintptr_t pointer = stack_pointer(entry->name)) out->push_back(pointer);
        }
    }
    if (fd >= 0) raw::close(fd);
    std::sort(out->begin(), out->end());
}

void find_stacks(PageVector<Area>& areas) {
    PageVector<std::uintptr_t> pointers;
    stack_pointers(&pointers);
    for (Area& area : areas) {
        const std::uintptr_t* at = std::lower_bound(pointers.begin(), pointers.end(), area.start);
        area.holds_stack = at != pointers.end() && *at < area.end;
    }
}

// Cuts areas at the borders of ranges, and sets a flag of the pieces inside: the kernel joins neighbours whoever they belong to.
void cut(PageVector<Area>* areas, Ranges& ranges, bool Area::* flag) {
    std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
    PageVector<Area> out;
    PageFlags pages;
    for (const Area& area : *areas) {
        std::uintptr_t at = area.start;
        std::int64_t left = area.resident;
        const auto piece = [&](std::uintptr_t end, bool inside) {
            if (end <= at) return;
            Area part = area;
            part.start = at;
            part.end = at = end;
            part.*flag = inside;
            part.resident = end == area.end ? left : std::min(left, pages.resident_bytes(part.start, part.end));
            left -= part.resident;
            out.push_back(part);
        };
        const OwnRanges::Range* range =
            std::lower_bound(ranges.begin(), ranges.end(), at, [](const auto& r, auto to) { return r.end <= to; });
        for (; range != ranges.end() && range->start < area.end; ++range) {
            piece(std::max(range->start, area.start), false);
            piece(std::min(range->end, area.end), true);
        }
        piece(area.end, false);
    }
    areas->swap(out);
}

}  // namespace

void read_areas(PageVector<Area>* out, Ranges* mappings) {
    read_smaps(out);
    find_stacks(*out);
    Ranges overhead;
    own_ranges.each([&overhead](const OwnRanges::Range& range) { overhead.push_back(range); });
    cut(out, overhead, &Area::is_overhead);
    if (mappings != nullptr) cut(out, *mappings, &Area::mapping);
}

}  // namespace hiwater::residency
