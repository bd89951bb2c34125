// The process's mappings with what is resident of each, from /proc/self/maps or smaps.
#pragma once

#include <cstdint>
#include "base/own_ranges.h"
#include "base/pages.h"

namespace hiwater::residency {

class PageFlags;

struct Area {
    enum class Path : std::uint8_t { none, file, shared, heap, stack, other };

    static constexpr std::int64_t kNotCounted = -1;

    std::uintptr_t start = 0, end = 0;
    std::int64_t resident = 0;  // kNotCounted where PageFlags finds all pages that are
    Path path = Path::none;
    bool writable = false, inaccessible = false;
    bool follows_file = false;  // a library's zeroed data follows its file without a name
    bool malloc_heap = false;   // of a thread: glibc aligns these, and reserves address space behind them
    bool holds_stack = false;   // a waiting thread's stack pointer is in it
    bool is_overhead = false;   // the recorder's
    bool mapping = false;       // of the program, as the recorder saw it

    std::uint64_t size() const { return end - start; }
    bool is_plain() const {
        return path == Path::none && writable && !follows_file && !malloc_heap && !holds_stack && !is_overhead &&
               !mapping;
    }
};

// Page vectors throughout: a heap's block taken by the recorder's thread would make the C library open an arena for it,
// 64 MiB of the program's address space.
using Ranges = PageVector<OwnRanges::Range>;

// `mappings`: what the program is known to have mapped. Throws bad_alloc. Empty where the kernel shows nothing.
void read_areas(PageVector<Area>* out, PageFlags& pages, Ranges* mappings = nullptr);

}  // namespace hiwater::residency
