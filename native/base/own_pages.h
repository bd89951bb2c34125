// How many pages of this process are the recorder's own, from /proc/self/pagemap: what "overhead of hiwater" means
// everywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/errno_kept.h"
#include "base/own_file.h"
#include "base/own_ranges.h"
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

// Takes about a tenth of a millisecond for 10 MiB of address space. Needs no lock.
class OwnPagesCount : Uncopied {
public:
    OwnPagesCount() noexcept : file_(own_files::pages) {}

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

    // Pages that were only read stand for the kernel's page of zeros: present, of no file, and not this process's
    // alone.
    std::int64_t bytes_in(const OwnRanges::Range& range, bool with_shared) const noexcept {
        constexpr std::uint64_t kPresent = std::uint64_t{1} << 63, kOfFile = std::uint64_t{1} << 61,
                                kExclusive = std::uint64_t{1} << 56;
        const std::uint64_t counts = with_shared ? ~std::uint64_t{0} : kOfFile | kExclusive;
        std::uint64_t flags[1024];
        std::int64_t found = 0;
        for (std::uintptr_t page = range.start / kPage; page < round_up(range.end, kPage) / kPage;) {
            const std::size_t part = std::min<std::size_t>(std::size(flags), round_up(range.end, kPage) / kPage - page);
            const ssize_t n = file_.read(flags, part * sizeof flags[0], static_cast<off_t>(page * sizeof flags[0]));
            if (n < static_cast<ssize_t>(sizeof flags[0])) return in_core(range);
            const std::size_t read = static_cast<std::size_t>(n) / sizeof flags[0];
            found += std::count_if(flags, flags + read,
                                   [&](std::uint64_t f) { return (f & kPresent) != 0 && (f & counts) != 0; });
            page += read;
        }
        return found * static_cast<std::int64_t>(kPage);
    }

    const ErrnoKept errno_kept_;  // first, so that it outlives the descriptor
    const OwnFile::Reading file_;
};

}  // namespace hiwater
