#include "residency/areas.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/own_file.h"
#include "base/proc_lines.h"
#include "base/process.h"
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

Area area_of(const MapsLine& head) noexcept {
    Area area{.start = head.start, .end = head.end, .path = path_of(head.path, head.mode[3])};
    area.writable = std::string_view(head.mode).starts_with("rw") && head.mode[3] == 'p';
    area.inaccessible = std::string_view(head.mode).starts_with("---");
    return area;
}

// For smaps the kernel visits each page, and writes twenty lines more for each mapping. Where pages can be found later,
// it is not asked. It counts no pages of its pool of huge ones, nor do we.
void read_mappings(PageVector<Area>* out, const PageFlags& pages) {
    PageVector<Area>& found = *out;
    Lines lines(pages.finds_all() ? own_files::areas : own_files::areas_with_pages);
    for (char* line = lines.next(); line != nullptr; line = lines.next()) {
        MapsLine head;
        if (line[0] >= 'A' && line[0] <= 'Z') {
            if (found.size() != 0 && std::string_view(line).starts_with("Rss:"))
                found[found.size() - 1].resident = ::strtoll(line + 4, nullptr, 10) * 1024;
        } else if (head.read(line)) {
            Area area = area_of(head);
            if (found.size() != 0 && found[found.size() - 1].end == area.start) {
                area.follows_file =
                    found[found.size() - 1].path == Area::Path::file && found[found.size() - 1].writable;
                found[found.size() - 1].malloc_heap =
                    area.inaccessible && found[found.size() - 1].start % kMallocHeap == 0;
            }
            if (pages.finds_all() && !std::string_view(head.path).starts_with("/anon_hugepage"))
                area.resident = Area::kNotCounted;
            found.push_back(area);
        }
    }
}

// An address in the thread's stack, or 0: at its end the C library keeps what the thread has to itself, with the head
// of its list of robust mutexes, which the kernel knows. No file has to be opened for it, as for
// /proc/self/task/TID/syscall.
std::uintptr_t address_in_stack(const char* thread) noexcept {
    void* head = nullptr;
    std::size_t bytes = 0;
    const long id = ::strtol(thread, nullptr, 10);
    return raw::syscall(SYS_get_robust_list, id, &head, &bytes) == 0 ? reinterpret_cast<std::uintptr_t>(head) : 0;
}

void addresses_in_stacks(PageVector<std::uintptr_t>* out) {
    const auto visit = [](const char* thread, void* context) {
        if (const std::uintptr_t address = address_in_stack(thread))
            static_cast<PageVector<std::uintptr_t>*>(context)->push_back(address);
    };
    process::each_number_in(own_files::threads, visit, out);
    std::sort(out->begin(), out->end());
}

void find_stacks(PageVector<Area>& areas) {
    PageVector<std::uintptr_t> addresses;
    addresses_in_stacks(&addresses);
    for (Area& area : areas) {
        const std::uintptr_t* at = std::lower_bound(addresses.begin(), addresses.end(), area.start);
        area.holds_stack = at != addresses.end() && *at < area.end;
    }
}

// Cuts areas at the borders of ranges, and sets a flag of the pieces inside: the kernel joins neighbours whoever they
// belong to.
void cut(PageVector<Area>* areas, Ranges& ranges, bool Area::* flag, PageFlags& pages) {
    std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
    PageVector<Area> out;
    for (const Area& area : *areas) {
        std::uintptr_t at = area.start;
        std::int64_t left = area.resident;
        const auto piece = [&](std::uintptr_t end, bool inside) {
            if (end <= at) return;
            Area part = area;
            part.start = at;
            part.end = at = end;
            part.*flag = inside;
            if (area.resident > 0) {
                part.resident = end == area.end ? left : std::min(left, pages.resident_bytes(part.start, part.end));
                left -= part.resident;
            }
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

void read_areas(PageVector<Area>* out, PageFlags& pages, Ranges* mappings) {
    read_mappings(out, pages);
    find_stacks(*out);
    Ranges overhead;
    own_ranges.each([&overhead](const OwnRanges::Range& range) { overhead.push_back(range); });
    cut(out, overhead, &Area::is_overhead, pages);
    if (mappings != nullptr) cut(out, *mappings, &Area::mapping, pages);
}

}  // namespace hiwater::residency
