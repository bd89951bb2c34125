#include "residency/page_flags.h"

#include <algorithm>

#include "base/pages.h"

namespace hiwater::residency {

namespace {

// Documentation/admin-guide/mm/pagemap.rst
constexpr std::uint64_t kPresent = 1ULL << 63, kNotAnonymous = 1ULL << 61, kMineAlone = 1ULL << 56;
constexpr std::int64_t kSlip = 64 * static_cast<std::int64_t>(kPage);  // may be touched between smaps and pagemap

}  // namespace

void PageFlags::choose(std::uintptr_t start, std::uintptr_t end, std::int64_t resident) noexcept {
    only_surely_ = false;
    only_surely_ = resident_bytes(start, end) > resident + kSlip;
}

bool PageFlags::load(std::uint64_t page, std::uint64_t most) noexcept {
    first_ = page;
    loaded_ = 0;
    const std::size_t bytes = std::min<std::uint64_t>(most, kWindow) * sizeof window_[0];
    const ssize_t n = file_.read(window_, bytes, static_cast<off_t>(page * sizeof window_[0]));
    if (n <= 0) return false;
    loaded_ = static_cast<std::uint64_t>(n) / sizeof window_[0];
    return loaded_ > 0;
}

bool PageFlags::is_present(std::uint64_t page, std::uint64_t most) noexcept {
    if ((page < first_ || page >= first_ + loaded_) && !load(page, most)) return false;
    const std::uint64_t flags = window_[page - first_];
    if ((flags & (kPresent | kNotAnonymous)) != kPresent) return false;
    return !only_surely_ || (flags & kMineAlone) != 0;
}

std::uintptr_t PageFlags::next_present(std::uintptr_t from, std::uintptr_t end) noexcept {
    const std::uint64_t behind = (end + kPage - 1) / kPage;
    for (std::uint64_t page = from / kPage; page < behind; ++page)
        if (is_present(page, behind - page)) return page * kPage;
    return end;
}

std::int64_t PageFlags::resident_bytes(std::uintptr_t start, std::uintptr_t end) noexcept {
    std::int64_t bytes = 0;
    for (std::uint64_t page = start / kPage; page * kPage < end; ++page)
        if (is_present(page, kWindow)) bytes += kPage;  // the next range is often close behind
    return bytes;
}

}  // namespace hiwater::residency
