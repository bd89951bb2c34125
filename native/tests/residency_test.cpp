#include "residency/breakdown.h"
#include "residency/malloc_totals.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/pagemap.h"
#include "base/pages.h"
#include "support.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsGlibcMalloc = false;
#else
constexpr bool kIsGlibcMalloc = true;
#endif

namespace hiwater::tests {

using namespace residency;

TEST_SUITE_BEGIN("residency");

namespace {

constexpr std::int64_t kMiB = 1 << 20;

struct Looked : Breakdown {
    Looked() {
        prepare_malloc_totals();
        REQUIRE(take_snapshot(this));
    }
};

struct Head {
    unsigned char bytes[kHeadBytes] = {};
    template <typename T>
    void put(std::size_t at, T value) {
        ::memcpy(bytes + at, &value, sizeof value);
    }
};

Head chunk_head(std::uint64_t before, std::uint64_t size) {
    Head head;
    head.put(before, before);
    head.put(before + 8, size);
    return head;
}

Head pool_head(std::uint32_t used, std::uint32_t size_class, std::uint32_t next, std::uint32_t last) {
    Head head;
    head.put(0, used);
    head.put(36, size_class);
    head.put(40, next);
    head.put(44, last);
    return head;
}

std::int64_t grown(Part part, Breakdown& before, Breakdown& after) {
    return after[part].resident_bytes - before[part].resident_bytes;
}

}  // namespace

TEST_CASE("a block that malloc mapped is known by its head, and nothing that is nearly one") {
    CHECK(chunk_of(chunk_head(0, 8192 | 2).bytes, 8192).bytes == 8192);
    CHECK(chunk_of(chunk_head(0, 8192 | 2).bytes, 8192).offset == 16);
    CHECK(chunk_of(chunk_head(48, (8192 - 48) | 2).bytes, 8192).bytes == 8192);  // an aligned block
    CHECK(chunk_of(chunk_head(48, (8192 - 48) | 2).bytes, 8192).offset == 64);
    CHECK(chunk_of(chunk_head(0, 8192 | 2).bytes, 4096).bytes == 0);            // longer than its area
    CHECK(chunk_of(chunk_head(0, 8192 | 3).bytes, 8192).bytes == 0);            // another flag
    CHECK(chunk_of(chunk_head(0, 4096 | 2).bytes, 8192).bytes == 0);            // nothing that small is mapped
    CHECK(chunk_of(chunk_head(0, 8200 | 2).bytes, 16384).bytes == 0);           // no whole number of pages
    CHECK(chunk_of(chunk_head(0, (8192 - 16) | 2).bytes, 8192).bytes == 8192);  // glibc 2.43
    CHECK(chunk_of(Head().bytes, 8192).bytes == 0);
}

TEST_CASE("a pool's head tells what is live in it, and what is nearly one is none") {
    CHECK(pool_live_bytes(pool_head(10, 1, 4096, 16384 - 32).bytes) == 320);
    CHECK(pool_live_bytes(pool_head(0, 31, 512, 16384 - 512).bytes) == 0);
    CHECK(pool_live_bytes(pool_head(10, 32, 4096, 16384 - 32).bytes) == -1);
    CHECK(pool_live_bytes(pool_head(10, 1, 4096, 16384 - 48).bytes) == -1);
    CHECK(pool_live_bytes(pool_head(600, 1, 4096, 16384 - 32).bytes) == -1);
    CHECK(pool_live_bytes(pool_head(10, 1, 20000, 16384 - 32).bytes) == -1);
    CHECK(pool_live_bytes(Head().bytes) == -1);
}

TEST_CASE(
    "heads are of the pages that are asked for, however many come together; of pages in RAM alone, and of none that is "
    "gone") {
    constexpr std::size_t pools = 300, unmapped = 200;
    constexpr std::size_t bytes = (pools + 1) * kPoolBytes;
    auto* mapped =
        static_cast<char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::madvise(mapped, bytes, MADV_NOHUGEPAGE);
    const std::uintptr_t first = round_up(reinterpret_cast<std::uintptr_t>(mapped), kPoolBytes),
                         end = first + pools * kPoolBytes;
    const auto is_touched = [](std::size_t pool) { return pool < 90 || pool > 120; };
    for (std::size_t i = 0; i < pools; ++i)
        for (const std::size_t page : {i % 7 == 3 ? 1 : 0, i % 5 == 2 ? 2 : 3})  // its head holds its number
            if (is_touched(i)) *reinterpret_cast<std::size_t*>(first + i * kPoolBytes + page * kPage) = 4 * i + page;

    PageFlags pages;
    PageHeads heads(pages);
    REQUIRE(PageHeads::works());
    std::size_t found = 0;
    std::uintptr_t at = first;
    while ((at = pages.next_present(at, end)) < end) {
        const std::size_t pool = (at - first) / kPoolBytes, page = (at - first) / kPage;
        REQUIRE(is_touched(pool));
        if (pool == unmapped && at % kPoolBytes == 0) ::munmap(reinterpret_cast<void*>(at), end - at);
        const unsigned char* head = heads.at(at, end);
        if (head != nullptr) {
            CHECK(::memcmp(head, &page, sizeof page) == 0);
            ++found;
        } else {
            CHECK(pool >= unmapped);
        }
        at += kPage;
    }
    CHECK(found >= 2 * (unmapped - 31));
    CHECK(found < 2 * (pools - 31));
    CHECK(touched_bytes(first, 130 * kPoolBytes) == 2 * (130 - 31) * static_cast<std::int64_t>(kPage));
    ::munmap(mapped, bytes);
}

// Whether each page of [start, end) is found.
std::vector<bool> pages_found(const Pagemap& map, Pagemap::Kind kind, std::uintptr_t start, std::uintptr_t end,
                              std::size_t most) {
    std::vector<bool> found((end - start) / kPage);
    std::vector<Pagemap::Range> ranges(most);
    for (std::uintptr_t from = start; from < end;) {
        const Pagemap::Found part = map.find(kind, from, end, ranges.data(), most);
        REQUIRE(part.end > from);
        REQUIRE(part.end <= end);
        REQUIRE(part.ranges <= most);
        for (std::size_t i = 0; i < part.ranges; ++i)
            for (std::uintptr_t at = ranges[i].start; at < ranges[i].end; at += kPage)
                found[(at - start) / kPage] = true;
        from = part.end;
    }
    return found;
}

TEST_CASE("ranges of pages are found as the flags of each page tell them, however many at once") {
    constexpr std::size_t pages = 1500;
    auto* mapped = static_cast<volatile char*>(
        ::mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::madvise(const_cast<char*>(mapped), pages * kPage, MADV_NOHUGEPAGE);
    const auto is_written = [](std::size_t page) { return page % 3 == 1 || (page > 600 && page < 900); };
    const auto is_read = [](std::size_t page) { return page % 7 == 0; };
    for (std::size_t page = 0; page < pages; ++page) {
        if (is_written(page)) mapped[page * kPage] = 1;
        if (is_read(page)) (void)mapped[page * kPage];
    }
    const auto start = reinterpret_cast<std::uintptr_t>(mapped), end = start + pages * kPage;
    for (const bool may_scan : {true, false}) {
        const Pagemap map(may_scan);
        REQUIRE(map.works());
        for (const std::size_t most : {std::size_t{1}, std::size_t{7}, std::size_t{1000}}) {
            const auto in_ram = pages_found(map, Pagemap::Kind::mapped, start, end, most);
            const auto memory = pages_found(map, Pagemap::Kind::memory, start, end, most);
            for (std::size_t page = 0; page < pages; ++page) {
                CHECK(in_ram[page] == (is_written(page) || is_read(page)));
                if (map.scans()) CHECK(memory[page] == is_written(page));
            }
        }
    }
    ::munmap(const_cast<char*>(mapped), pages * kPage);
}

TEST_CASE("pages are counted and found in any order of addresses, as often as they are asked for") {
    constexpr std::size_t pages = 6000;
    for_seeds(20, [&](Trace& trace) {
        auto* mapped = static_cast<volatile char*>(
            ::mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        ::madvise(const_cast<char*>(mapped), pages * kPage, MADV_NOHUGEPAGE);
        const auto start = reinterpret_cast<std::uintptr_t>(mapped);
        std::vector<bool> written(pages, false);
        for (std::uint64_t left = trace.below(12) * trace.below(200); left != 0; --left) {
            const std::size_t first = trace.below(pages), end = std::min<std::size_t>(pages, first + trace.below(20));
            for (std::size_t page = first; page < end; ++page) {
                written[page] = true;
                mapped[page * kPage] = 1;
            }
        }
        for (const bool may_scan : {true, false}) {
            PageFlags flags(Pagemap::Kind::memory, may_scan);
            for (int asked = 0; asked < 200; ++asked) {
                const std::size_t first = trace.below(pages), end = first + trace.below(pages - first) + 1;
                std::int64_t bytes = 0;
                for (std::size_t page = first; page < end; ++page) bytes += written[page] ? kPage : 0;
                CHECK(flags.resident_bytes(start + first * kPage, start + end * kPage) == bytes);
                std::size_t next = first;
                while (next < end && !written[next]) ++next;
                CHECK(flags.next_present(start + first * kPage, start + end * kPage) == start + next * kPage);
            }
        }
        ::munmap(const_cast<char*>(mapped), pages * kPage);
    });
}

TEST_CASE("of a file's private pages, those that were written are told from those that were read") {
    constexpr std::size_t pages = 40;
    const int fd = ::memfd_create("pages", 0);
    REQUIRE(::ftruncate(fd, pages * kPage) == 0);
    auto* mapped =
        static_cast<volatile char*>(::mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
    for (std::size_t page = 0; page < pages; ++page) {
        if (page % 2 == 0) (void)mapped[page * kPage];
        if (page % 5 == 0) mapped[page * kPage] = 1;
    }
    const auto start = reinterpret_cast<std::uintptr_t>(mapped), end = start + pages * kPage;
    for (const bool may_scan : {true, false}) {
        const Pagemap map(may_scan);
        const auto written = pages_found(map, Pagemap::Kind::written, start, end, 3);
        for (std::size_t page = 0; page < pages; ++page) CHECK(written[page] == (page % 5 == 0));
    }
    ::munmap(const_cast<char*>(mapped), pages * kPage);
    ::close(fd);
}

TEST_CASE("the parts add up to what is resident") {
    Looked found;
    std::int64_t sum = 0;
    for (const Row& row : found.rows) sum += row.resident_bytes;
    CHECK(sum == found.resident_bytes);
    CHECK(found.resident_bytes > 0);
}

TEST_CASE("what the program grows by during a snapshot is not unexplained") {
    Looked before;
    constexpr std::size_t kBytes = 512U << 20;
    auto* const memory = static_cast<char*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    REQUIRE(memory != MAP_FAILED);
    std::atomic<bool> is_over{false};
    std::thread program([&] {
        for (std::size_t at = 0; at < kBytes && !is_over.load(); at += kPage) memory[at] = 1;
        is_over = true;
    });
    std::int64_t most = 0;
    int taken = 0;
    for (; taken < 3 || !is_over; ++taken) {
        Looked now;
        most = std::max(most, std::abs(grown(Part::unexplained, before, now)));
        if (taken > 20) is_over = true;
    }
    program.join();
    ::munmap(memory, kBytes);
    // What it grew by between two readings of its resident memory: below 1 MiB, but more where other work takes the
    // processor meanwhile.
    CHECK(most < 16 * kMiB);
}

TEST_CASE("a mapping splits into touched and untouched, and looking touches nothing") {
    Looked before;
    auto* bytes =
        static_cast<char*>(::mmap(nullptr, 64 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::madvise(bytes, 64 * kMiB, MADV_NOHUGEPAGE);
    ::memset(bytes + 8 * kMiB, 1, 24 * kMiB);
    for (int i = 0; i < 3; ++i) Looked();
    Looked after;
    CHECK(std::abs(grown(Part::anonymous, before, after) + grown(Part::unexplained, before, after) - 24 * kMiB) < kMiB);
    CHECK(touched_bytes(reinterpret_cast<std::uintptr_t>(bytes), 64 * kMiB) == 24 * kMiB);
    CHECK(touched_bytes(reinterpret_cast<std::uintptr_t>(bytes) + 8 * kMiB, kMiB) == kMiB);
    ::munmap(bytes, 64 * kMiB);
}

TEST_CASE("pages of the recorder are its own, even where the kernel joined them with others") {
    Looked before;
    auto* ours = static_cast<char*>(map_pages(16 * kMiB));
    ::memset(ours, 1, 4 * kMiB);
    Looked with;
    CHECK(std::abs(grown(Part::overhead, before, with) - 4 * kMiB) < kMiB / 4);
    CHECK(with[Part::overhead].untouched_bytes - before[Part::overhead].untouched_bytes > 11 * kMiB);
    unmap_pages(ours, 16 * kMiB);
    Looked without;
    CHECK(std::abs(grown(Part::overhead, before, without)) < kMiB / 4);
}

TEST_CASE("a large block of malloc's is found, whole and in its touched part" * doctest::skip(!kIsGlibcMalloc)) {
    if (is_slow_machine()) return;  // valgrind has a malloc of its own
    Looked before;
    auto* block = static_cast<char*>(std::malloc(48 * kMiB));
    ::madvise(reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(block) + kPage) & ~(kPage - 1)), 47 * kMiB,
              MADV_NOHUGEPAGE);
    ::memset(block, 1, 12 * kMiB);
    Looked found;
    REQUIRE(found.large.size() != 0);
    CHECK(found.large[0].from_malloc);
    CHECK(found.large[0].block == reinterpret_cast<std::uintptr_t>(block));
    CHECK(std::abs(found.large[0].bytes - 48 * kMiB) <= 8192);
    CHECK(std::abs(found.large[0].touched_bytes - 12 * kMiB) <= 8192);
    CHECK(std::abs(grown(Part::malloc_live, before, found) - 12 * kMiB) < kMiB);
    std::free(block);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
