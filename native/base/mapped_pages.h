// How much of a file's mapping this process has mapped, from /proc/self/pagemap. For a file, mincore() tells what the kernel's cache holds, also
// of pages that were given back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/errno_kept.h"
#include "base/own_file.h"
#include "base/pages.h"
#include "base/uncopied.h"

namespace hiwater {

class MappedPages : Uncopied {
public:
    MappedPages() noexcept : file_(own_files::pages) {}

    // Of whole pages from `at` on. Where /proc cannot be read, what mincore() tells.
    std::uint64_t bytes_in(const void* at, std::uint64_t bytes) const noexcept {
        constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;  // Documentation/admin-guide/mm/pagemap.rst
        std::uint64_t flags[512], found = 0;
        const std::uint64_t first = reinterpret_cast<std::uintptr_t>(at) / kPage, pages = (bytes + kPage - 1) / kPage;
        for (std::uint64_t done = 0; done < pages;) {
            const std::uint64_t part = std::min<std::uint64_t>(pages - done, std::size(flags));
            const ssize_t n = file_.read(flags, part * sizeof flags[0], static_cast<off_t>((first + done) * sizeof flags[0]));
            if (n < static_cast<ssize_t>(sizeof flags[0])) return resident_in(at, bytes);
            const std::uint64_t read = static_cast<std::uint64_t>(n) / sizeof flags[0];
            for (std::uint64_t i = 0; i < read; ++i) found += (flags[i] & kPresent) != 0;
            done += read;
        }
        return found * kPage;
    }

private:
    const ErrnoKept kept_;  // first, so that it outlives the descriptor
    const OwnFile::Reading file_;
};

}  // namespace hiwater
