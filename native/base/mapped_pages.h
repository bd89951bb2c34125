// How much of a file's mapping this process has mapped, from /proc/self/pagemap. For a file, mincore() tells what the kernel's cache holds, also
// of pages that were given back.
#pragma once

#include <cstdint>
#include <iterator>

#include "base/errno_kept.h"
#include "base/pagemap.h"
#include "base/pages.h"
#include "base/uncopied.h"

namespace hiwater {

class MappedPages : Uncopied {
public:
    // Of whole pages from `at` on. Where /proc cannot be read, what mincore() tells.
    std::uint64_t bytes_in(const void* at, std::uint64_t bytes) const noexcept {
        Pagemap::Range ranges[64];
        const auto start = reinterpret_cast<std::uintptr_t>(at), end = start + round_up(bytes, kPage);
        std::uint64_t found_bytes = 0;
        for (std::uintptr_t from = start; from < end;) {
            const Pagemap::Found found = map_.find(Pagemap::Kind::mapped, from, end, ranges, std::size(ranges));
            if (found.end <= from) return resident_in(at, bytes);
            for (std::size_t i = 0; i < found.ranges; ++i) found_bytes += ranges[i].end - ranges[i].start;
            from = found.end;
        }
        return found_bytes;
    }

private:
    const ErrnoKept kept_;  // first, so that it outlives the descriptor
    const Pagemap map_;
};

}  // namespace hiwater
