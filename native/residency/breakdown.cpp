#include "residency/breakdown.h"

#include <string.h>

#include <algorithm>
#include <new>

#include "base/pages.h"
#include "base/process.h"
#include "residency/malloc_totals.h"
#include "residency/page_flags.h"
#include "residency/page_heads.h"

namespace hiwater::residency {

namespace {

constexpr int kMostPagesRead = 100'000;  // at about half a microsecond each
constexpr std::int64_t kLarge = 1 << 20;
constexpr std::uint64_t kTooSparse = 64ULL << 30;

class Sorter {
public:
    Sorter(Breakdown& out, PageFlags& pages) : out_(out), pages_(pages) {
        out_.is_unreadable = !PageHeads::works() || !pages_.works();
    }

    // Goes through the areas. Neighbouring plain ones are one: advice about huge pages, which NumPy gives, cuts a block
    // in two.
    void sort_out(const PageVector<Area>& areas) {
        for (std::size_t i = 0; i < areas.size(); ++i) {
            Area run = areas[i];
            if (!run.is_plain()) {
                sort(run);
                continue;
            }
            for (; i + 1 < areas.size() && areas[i + 1].is_plain() && areas[i + 1].start == run.end; ++i) {
                run.end = areas[i + 1].end;
                if (run.resident != Area::kNotCounted) run.resident += areas[i + 1].resident;
            }
            sort_pages(run);
        }
    }

    void finish() {
        const auto [is_malloc_known, reported, mapped] = malloc_totals();
        const std::int64_t in_use = is_malloc_known ? reported : heap_;
        out_.is_malloc_unknown = !is_malloc_known;
        const std::int64_t small_blocks = std::min(heap_, in_use);
        const std::int64_t objects = std::min(objects_, pools_);
        out_[Part::python_live].resident_bytes = objects;
        out_[Part::python_slack].resident_bytes = pools_ - objects;
        out_[Part::malloc_live] = {small_blocks + chunks_touched_,
                                   std::max<std::int64_t>(0, in_use - heap_) + chunks_ - chunks_touched_};
        out_[Part::malloc_slack].resident_bytes = heap_ - small_blocks;
        out_.page_limit_reached = pages_left_ <= 0;
        if (mapped - chunks_ > kLarge) out_.not_found_bytes = mapped - chunks_;
        std::sort(out_.large.begin(), out_.large.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    }

private:
    std::int64_t resident_of(const Area& area) {
        return area.resident != Area::kNotCounted ? area.resident : pages_.resident_bytes(area.start, area.end);
    }

    void add(Part part, const Area& area) { add(part, area, resident_of(area)); }
    void add(Part part, const Area& area, std::int64_t resident) {
        out_[part].resident_bytes += resident;
        if (part == Part::overhead) out_[part].untouched_bytes += static_cast<std::int64_t>(area.size()) - resident;
    }

    void sort(const Area& area) {
        using Path = Area::Path;
        if (area.is_overhead) return add(Part::overhead, area);
        if (area.mapping && area.path == Path::none) return add_mapping(area, resident_of(area));
        if (area.path == Path::shared) return add_shared(area);
        if (area.path == Path::file || (area.follows_file && area.path == Path::none && area.size() < kLarge))
            return add(Part::files, area);
        if (area.path == Path::stack || area.holds_stack) return add(Part::stacks, area);
        if (area.path == Path::heap || area.malloc_heap) {
            heap_ += resident_of(area);
        } else if (area.path == Path::none && area.writable) {
            sort_pages(area);
        } else {
            add(Part::anonymous, area);
        }
    }

    // Separates malloc's own mappings and Python's pools from other anonymous memory, page by page.
    void sort_pages(const Area& area) {
        if (area.resident == 0 && area.size() >= kLarge) return add_mapping(area, 0);
        if (out_.is_unreadable || area.size() > kTooSparse) return add_mapping(area, resident_of(area));
        pages_.choose(area.start, area.end, area.resident);
        std::int64_t counted = 0, found = 0;
        std::uintptr_t at = pages_.next_present(area.start, area.end);
        for (; at < area.end && pages_left_ > 0; at = pages_.next_present(at, area.end)) {
            const Thing thing = one_thing(at, area);
            at += thing.bytes;
            counted += thing.touched;
            found += thing.is_found ? thing.touched : 0;
        }
        if (at < area.end) counted += pages_.resident_bytes(at, area.end);
        // The rest of an area with an allocator's memory in it lies beside it, so perhaps is the allocator's:
        // unexplained.
        const std::int64_t resident = area.resident != Area::kNotCounted ? area.resident : counted;
        if (found == 0 || pages_left_ <= 0) add_mapping(area, resident, found);
    }

    // What begins at a page that is in RAM.
    struct Thing {
        std::uint64_t bytes;
        std::int64_t touched;
        bool is_found;  // an allocator's
    };

    // Adds it where it belongs.
    Thing one_thing(std::uintptr_t at, const Area& area) {
        constexpr Thing kUnknown{kPage, static_cast<std::int64_t>(kPage), false};
        --pages_left_;
        const unsigned char* head = heads_.at(at, area.end);
        if (head == nullptr) return kUnknown;
        if (const Chunk chunk = chunk_of(head, area.end - at); chunk.bytes != 0) {
            const auto bytes = static_cast<std::int64_t>(chunk.bytes);
            const std::int64_t touched = pages_.resident_bytes(at, at + chunk.bytes);
            chunks_ += bytes;
            chunks_touched_ += touched;
            if (bytes >= kLarge) out_.large.push_back({true, at, at + chunk.offset, bytes, touched});
            return {chunk.bytes, touched, true};
        }
        const std::int64_t live = at % kPoolBytes == 0 ? pool_live_bytes(head) : -1;
        if (live < 0) return kUnknown;
        const std::int64_t touched = pages_.resident_bytes(at, std::min(at + kPoolBytes, area.end));
        pools_ += touched;
        objects_ += std::min(live, touched);
        return {kPoolBytes, touched, true};
    }

    // What the program was seen to map is listed among the large ones.
    void add_shared(const Area& area) {
        const std::int64_t resident = resident_of(area);
        add(Part::shared, area, resident);
        const auto size = static_cast<std::int64_t>(area.size());
        if (area.mapping && size >= kLarge) out_.large.push_back({false, area.start, area.start, size, resident});
    }

    void add_mapping(const Area& area, std::int64_t resident, std::int64_t found = 0) {
        Row& row = out_[Part::anonymous];
        row.resident_bytes += std::max<std::int64_t>(0, resident - found);
        if (found != 0) return;
        const auto size = static_cast<std::int64_t>(area.size());
        row.untouched_bytes += size - resident;
        if (size >= kLarge) out_.large.push_back({false, area.start, area.start, size, resident});
    }

    Breakdown& out_;
    PageFlags& pages_;
    PageHeads heads_{pages_};
    int pages_left_ = kMostPagesRead;
    std::int64_t heap_ = 0, pools_ = 0, objects_ = 0, chunks_ = 0, chunks_touched_ = 0;
};

}  // namespace

const char* name_of(Part part) noexcept {
    static constexpr const char* kNames[kParts] = {
        "Python objects, live",
        "Python's arenas, slack",
        "malloc, live",
        "malloc, slack",
        "anonymous maps",
        "files and libraries",
        "shared",
        "stacks",
        "hiwater's overhead",
        "unexplained",
    };
    return kNames[static_cast<std::size_t>(part)];
}

bool take_snapshot(Breakdown* out, Ranges* mappings) noexcept {
    const std::int64_t before = process::resident_bytes();
    try {
        PageFlags pages;
        PageVector<Area> areas;
        read_areas(&areas, pages, mappings);
        if (areas.size() == 0) return false;
        Sorter sorter(*out, pages);
        sorter.sort_out(areas);
        sorter.finish();
    } catch (const std::bad_alloc&) {
        return false;
    }
    const std::int64_t after = process::resident_bytes();
    std::int64_t sum = 0;
    for (const Row& row : out->rows) sum += row.resident_bytes;
    // The program goes on meanwhile. What it grew by after its pages were counted is not unexplained: of the values
    // that resident memory had during the snapshot, the nearest to the sum is taken.
    out->resident_bytes = std::clamp(sum, std::min(before, after), std::max(before, after));
    (*out)[Part::unexplained].resident_bytes += out->resident_bytes - sum;
    return before >= 0 && after >= 0;
}

std::int64_t touched_bytes(std::uintptr_t address, std::uint64_t bytes) noexcept {
    std::int64_t touched = 0;
    try {
        PageFlags pages;
        PageVector<Area> areas;
        read_areas(&areas, pages);
        for (const Area& area : areas) {
            if (area.start >= address + bytes || area.end <= address) continue;
            pages.choose(area.start, area.end, area.resident);
            touched += pages.resident_bytes(std::max(address, area.start), std::min(address + bytes, area.end));
        }
    } catch (const std::bad_alloc&) {
        return 0;
    }
    return std::min(touched, static_cast<std::int64_t>(bytes));
}

// glibc keeps two words before a block that it mapped for itself: how far they are from the mapping's beginning, and
// the mapping's size from there on with the flag IS_MMAPPED (malloc/malloc.c, "struct malloc_chunk").
Chunk chunk_of(const unsigned char* head, std::uint64_t room) noexcept {
    constexpr std::uint64_t kFlags = 7, kIsMapped = 2;
    for (std::size_t at = 0; at + 16 <= kHeadBytes; at += 16) {
        std::uint64_t words[2];
        ::memcpy(words, head + at, sizeof words);
        const std::uint64_t before = words[0], size = words[1];
        if (before != at || (size & kFlags) != kIsMapped) continue;
        std::uint64_t whole = before + (size & ~kFlags);
        // Up to glibc 2.42 these two words are part of the size, from 2.43 on they are not.
        if (whole % kPage == kPage - sizeof words) whole += sizeof words;
        if (whole % kPage == 0 && whole > kPage && whole <= room) return {whole, at + 16};
    }
    return {};
}

// struct pool_header of CPython since 3.10 (Include/internal/pycore_obmalloc.h): its numbers must agree with each
// other.
std::int64_t pool_live_bytes(const unsigned char* head) noexcept {
    constexpr std::uint32_t kSizeClasses = 32;
    std::uint32_t used = 0, last[3];  // size class, offset of the next block never used, the highest it may have
    ::memcpy(&used, head, sizeof used);
    ::memcpy(last, head + 36, sizeof last);
    if (last[0] >= kSizeClasses) return -1;
    const std::uint32_t block = (last[0] + 1) * 16;
    if (last[2] != kPoolBytes - block || last[1] > kPoolBytes || used > kPoolBytes / block) return -1;
    return static_cast<std::int64_t>(used) * block;
}

}  // namespace hiwater::residency
