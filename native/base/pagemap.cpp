#include "base/pagemap.h"

#include <sys/ioctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <iterator>

#include "base/pages.h"
#include "base/raw_calls.h"

namespace hiwater {

namespace {

// Documentation/admin-guide/mm/pagemap.rst
constexpr std::uint64_t kPresent = 1ULL << 63, kNotAnonymous = 1ULL << 61, kMineAlone = 1ULL << 56;

// <linux/fs.h> of Linux 6.7, which older systems do not have.
struct ScannedRange {
    std::uint64_t start, end, categories;
};
struct ScanArguments {
    std::uint64_t size, flags, start, end, walk_end, ranges, most_ranges, most_pages;
    std::uint64_t inverted, all_of, any_of, returned;
};
constexpr unsigned long kScan = _IOWR('f', 16, ScanArguments);
constexpr std::uint64_t kIsFile = 1 << 2, kIsPresent = 1 << 3, kIsZeros = 1 << 5;

}  // namespace

Pagemap::Pagemap(bool may_scan) noexcept : file_(own_files::pages) {
    Range range;
    Found found;
    const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(&range) & ~(kPage - 1);
    scans_ = may_scan && works() && scan(Kind::mapped, page, page + kPage, &range, 1, &found);
}

Pagemap::Found Pagemap::find(Kind kind, std::uintptr_t from, std::uintptr_t to, Range* out, std::size_t most,
                             bool mine_alone) const noexcept {
    Found found{0, from};
    if (!scans_) return works() ? read(kind, from, to, out, most, mine_alone) : found;
    scan(kind, from, to, out, most, &found);
    return found;
}

bool Pagemap::scan(Kind kind, std::uintptr_t from, std::uintptr_t to, Range* out, std::size_t most,
                   Found* found) const noexcept {
    constexpr std::size_t kAtOnce = 256;
    ScannedRange ranges[kAtOnce];
    ScanArguments arguments{};
    arguments.size = sizeof arguments;
    arguments.start = from;
    arguments.end = to;
    arguments.ranges = reinterpret_cast<std::uintptr_t>(ranges);
    arguments.most_ranges = std::min(most, kAtOnce);
    // To tell files' pages apart takes the kernel three times as long.
    arguments.inverted = kind == Kind::mapped ? 0 : kind == Kind::memory ? kIsZeros : kIsZeros | kIsFile;
    arguments.all_of = arguments.inverted | kIsPresent;
    arguments.returned = kIsPresent;
    const long count = raw::syscall(SYS_ioctl, file_.descriptor(), kScan, &arguments);
    if (count < 0) return false;
    for (long i = 0; i < count; ++i) out[i] = {ranges[i].start, ranges[i].end};
    *found = {static_cast<std::size_t>(count), arguments.walk_end};
    return true;
}

Pagemap::Found Pagemap::read(Kind kind, std::uintptr_t from, std::uintptr_t to, Range* out, std::size_t most,
                             bool mine_alone) const noexcept {
    const std::uint64_t asked = kPresent | (kind == Kind::mapped ? 0 : kNotAnonymous);
    std::uint64_t flags[512];
    Found found{0, from};
    while (found.end < to) {
        const std::uint64_t wanted = std::min<std::uint64_t>((to - found.end) / kPage, std::size(flags));
        const ssize_t n =
            file_.read(flags, wanted * sizeof flags[0], static_cast<off_t>(found.end / kPage * sizeof flags[0]));
        if (n < static_cast<ssize_t>(sizeof flags[0])) break;
        const std::uint64_t pages = static_cast<std::uint64_t>(n) / sizeof flags[0];
        for (std::uint64_t i = 0; i < pages; ++i, found.end += kPage) {
            if ((flags[i] & asked) != kPresent || (mine_alone && (flags[i] & kMineAlone) == 0)) continue;
            if (found.ranges != 0 && out[found.ranges - 1].end == found.end) {
                out[found.ranges - 1].end += kPage;
            } else if (found.ranges == most) {
                return found;
            } else {
                out[found.ranges++] = {found.end, found.end + kPage};
            }
        }
    }
    return found;
}

}  // namespace hiwater
