// How many pages of this process are the recorder's own, from /proc/self/pagemap: what "overhead of hiwater" means
// everywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/errno_kept.h"
#include "base/own_library.h"
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
    std::int64_t library_bytes = 0;  // not in `bytes`: of the library that this code is in
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
        found.library_bytes = library_bytes();
        return found;
    }
    // 0 where it is not known.
    std::int64_t library_bytes() const noexcept {
        const auto start = reinterpret_cast<std::uintptr_t>(&__ehdr_start),
                   end = reinterpret_cast<std::uintptr_t>(&_end);
        return std::max<std::int64_t>(0, present(Pagemap::Kind::mapped, start, end, false));
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

    // Pages that were only read stand for the kernel's page of zeros, and are in no file.
    std::int64_t bytes_in(const OwnRanges::Range& range, bool may_share) const noexcept {
        const bool is_file = range.use == Use::shared;
        const std::int64_t bytes = present(is_file ? Pagemap::Kind::mapped : Pagemap::Kind::memory, range.start,
                                           range.end, !is_file && !may_share);
        return bytes < 0 ? in_core(range) : bytes;
    }

    // -1 where it cannot be read.
    std::int64_t present(Pagemap::Kind kind, std::uintptr_t start, std::uintptr_t end, bool mine_alone) const noexcept {
        end = round_up(end, kPage);
        Pagemap::Range found[256];
        std::uintptr_t bytes = 0;
        for (std::uintptr_t at = start & ~(kPage - 1); at < end;) {
            const Pagemap::Found some = pagemap_.find(kind, at, end, found, std::size(found), mine_alone);
            if (some.end == at) return -1;
            for (std::size_t i = 0; i < some.ranges; ++i) bytes += found[i].end - found[i].start;
            at = some.end;
        }
        return static_cast<std::int64_t>(bytes);
    }

    const ErrnoKept errno_kept_;  // first, so that it outlives the descriptor
    const Pagemap pagemap_;
};

}  // namespace hiwater
