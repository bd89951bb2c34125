// Which pages of this process are in RAM, asked for in the order of addresses: found a window at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/pagemap.h"
#include "base/uncopied.h"

namespace hiwater::residency {

class PageFlags : Uncopied {
public:
    explicit PageFlags(Pagemap::Kind kind = Pagemap::Kind::memory, bool may_scan = true) noexcept
        : map_(may_scan), kind_(kind) {}
    bool works() const noexcept { return map_.works(); }
    // Whether all that is in RAM is found, of files, too; otherwise only private anonymous memory.
    bool finds_all() const noexcept { return map_.scans(); }

    // Where the kernel's pages of zeros cannot be told from pages shared with a forked child, it takes smaps' own count
    // to choose what counts: `resident` is what smaps says of the area.
    void choose(std::uintptr_t start, std::uintptr_t end, std::int64_t resident) noexcept;

    // The first address at or after `from` whose page is in RAM; `end` when there is none.
    std::uintptr_t next_present(std::uintptr_t from, std::uintptr_t end) noexcept;
    // Bytes in RAM of the pages of [start, end), as last chosen.
    std::int64_t resident_bytes(std::uintptr_t start, std::uintptr_t end) noexcept;

private:
    // The first range that ends behind `at`, or null where there is none in [at, end), whole pages.
    const Pagemap::Range* range_behind(std::uintptr_t at, std::uintptr_t end) noexcept;

    static constexpr std::size_t kMost = 256;
    const Pagemap map_;
    const Pagemap::Kind kind_;
    bool mine_alone_ = false;
    std::uintptr_t start_ = 0, end_ = 0;  // of the window
    std::size_t count_ = 0, next_ = 0;    // ranges in it; where to look first
    Pagemap::Range ranges_[kMost];
};

}  // namespace hiwater::residency
