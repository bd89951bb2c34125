// How many pages of this process are the recorder's own, from /proc/self/pagemap: what "overhead of hiwater" means
// everywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/errno_kept.h"
#include "base/own_ranges.h"
#include "base/pagemap.h"
#include "base/pages.h"
#include "base/raw_calls.h"
#include "base/uncopied.h"

namespace hiwater {

struct OwnPages {
    std::int64_t bytes = 0;
    std::int64_t capture_bytes = 0;  // of these, the capture's
    // put_pages.least() before the count, and most() after it.
    std::int64_t put_before = 0, put_after = 0;
};

// Takes about a microsecond for each range where the kernel finds the pages itself, and otherwise a tenth of a
// millisecond for 10 MiB of address space. Needs no lock.
class OwnPagesCount : Uncopied {
public:
    // `may_share`: whether a relative may have some of the same pages, which then look as if they were nobody's.
    OwnPages read(bool may_share) const noexcept {
        OwnPages found;
        found.put_before = put_pages.least();
        own_ranges.each([&](const OwnRanges::Range& range) {
            const std::int64_t bytes = bytes_in(range, may_share && range.use != Use::wiped);
            found.bytes += bytes;
            if (range.use == Use::shared) found.capture_bytes += bytes;
        });
        found.put_after = put_pages.most();
        return found;
    }

private:
    // Where /proc cannot be read, what mincore() tells: of a file, also pages that are not mapped.
    static std::int64_t in_core(const OwnRanges::Range& range) noexcept {
        unsigned char pages[1024];
        std::int64_t found = 0;
        for (std::uintptr_t at = range.start; at < range.end; at += sizeof pages * kPage) {
            const std::size_t part = std::min<std::size_t>(range.end - at, sizeof pages * kPage);
            if (raw::mincore(reinterpret_cast<void*>(at), part, pages) != 0) break;
            found += std::count_if(pages, pages + round_up(part, kPage) / kPage,
                                   [](unsigned char page) { return (page & 1) != 0; });
        }
        return found * static_cast<std::int64_t>(kPage);
    }

    // Pages of private memory that were only read stand for the kernel's page of zeros, which is nobody's.
    std::int64_t bytes_in(const OwnRanges::Range& range, bool with_shared) const noexcept {
        const bool is_all = with_shared || range.use == Use::shared;
        const Pagemap::Kind kind = is_all ? Pagemap::Kind::mapped : Pagemap::Kind::memory;
        const std::uintptr_t end = round_up(range.end, kPage);
        std::int64_t bytes = 0;
        for (std::uintptr_t at = range.start & ~(kPage - 1); at < end;) {
            Pagemap::Range pages[256];
            const Pagemap::Found found = map_.find(kind, at, end, pages, std::size(pages), !is_all);
            if (found.end == at) return in_core(range);
            for (std::size_t i = 0; i < found.ranges; ++i)
                bytes += static_cast<std::int64_t>(pages[i].end - pages[i].start);
            at = found.end;
        }
        return bytes;
    }

    const ErrnoKept errno_kept_;  // first, so that it outlives the descriptor
    const Pagemap map_;
};

}  // namespace hiwater
