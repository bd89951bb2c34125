#include "residency/page_flags.h"

#include <algorithm>

#include "base/pages.h"

namespace hiwater::residency {

namespace {

constexpr std::int64_t kSlip = 64 * static_cast<std::int64_t>(kPage);  // may be touched between smaps and pagemap
constexpr std::uintptr_t kAhead = 2048 * kPage;                        // the next range is often close behind
constexpr std::uintptr_t kLastPage = 0x7fff'ffff'f000;  // of what programs map: behind it the kernel answers nothing

std::uintptr_t page_of(std::uintptr_t address) noexcept { return address & ~(kPage - 1); }

}  // namespace

void PageFlags::choose(std::uintptr_t start, std::uintptr_t end, std::int64_t resident) noexcept {
    if (map_.scans()) return;
    for (const bool mine_alone : {false, true}) {
        mine_alone_ = mine_alone;
        end_ = 0;
        if (resident_bytes(start, end) <= resident + kSlip) return;
    }
}

const Pagemap::Range* PageFlags::range_behind(std::uintptr_t at, std::uintptr_t end) noexcept {
    while (at < end) {
        if (at < start_ || at >= end_) {
            const Pagemap::Found found =
                map_.find(kind_, at, std::max(end, std::min(at + kAhead, kLastPage)), ranges_, kMost, mine_alone_);
            if (found.end <= at) return nullptr;
            start_ = at;
            end_ = found.end;
            count_ = found.ranges;
            next_ = 0;
        }
        if (next_ != 0 && ranges_[next_ - 1].end > at) next_ = 0;
        while (next_ < count_ && ranges_[next_].end <= at) ++next_;
        if (next_ < count_) return ranges_[next_].start < end ? &ranges_[next_] : nullptr;
        at = end_;
    }
    return nullptr;
}

std::uintptr_t PageFlags::next_present(std::uintptr_t from, std::uintptr_t end) noexcept {
    const std::uintptr_t page = page_of(from);
    const Pagemap::Range* const range = range_behind(page, round_up(end, kPage));
    return range == nullptr ? end : std::max(page, range->start);
}

std::int64_t PageFlags::resident_bytes(std::uintptr_t start, std::uintptr_t end) noexcept {
    std::uintptr_t bytes = 0;
    end = round_up(end, kPage);
    for (std::uintptr_t at = page_of(start); const Pagemap::Range* range = range_behind(at, end);) {
        const std::uintptr_t to = std::min(range->end, end);
        bytes += to - std::max(at, range->start);
        at = to;
    }
    return static_cast<std::int64_t>(bytes);
}

}  // namespace hiwater::residency
