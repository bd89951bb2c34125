// Which pages of this process are in RAM, from /proc/self/pagemap, read a window at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/own_file.h"
#include "base/uncopied.h"

namespace hiwater::residency {

class PageFlags : Uncopied {
public:
    PageFlags() : file_(own_files::pages) {}
    bool works() const { return file_.descriptor() >= 0; }

    // How pages of private anonymous memory are told from pages that were only ever read, which stand for the kernel's page of
    // zeros: present, and nobody's memory. A huge one is marked as not anonymous; a small one looks like a page shared with a forked
    // child, so it takes smaps' own count to choose: `resident` is what smaps says of the area.
    void choose(std::uintptr_t start, std::uintptr_t end, std::int64_t resident) noexcept;

    // The first address at or after `from` whose page is in RAM; `end` when there is none.
    std::uintptr_t next_present(std::uintptr_t from, std::uintptr_t end) noexcept;
    // Bytes in RAM of the pages of [start, end), as last chosen.
    std::int64_t resident_bytes(std::uintptr_t start, std::uintptr_t end) noexcept;

private:
    // Reads `most` pages from `page` on where it is not in the window. The kernel walks over each of them.
    bool is_present(std::uint64_t page, std::uint64_t most) noexcept;
    bool load(std::uint64_t page, std::uint64_t most) noexcept;

    static constexpr std::size_t kWindow = 2048;
    const OwnFile::Reading file_;
    bool only_surely_ = false;
    std::uint64_t first_ = 0, loaded_ = 0;  // pages in the window
    std::uint64_t window_[kWindow];
};

}  // namespace hiwater::residency
