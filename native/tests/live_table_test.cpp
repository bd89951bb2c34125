#include "heap/live_table.h"

#include <map>
#include <utility>
#include <vector>

#include "base/own_pages.h"
#include "support.h"

namespace hiwater::tests {

namespace {

constexpr std::uintptr_t kRegion = std::uintptr_t{1} << LiveTable::Region::kShift;

std::uintptr_t end_of(std::uintptr_t address, std::uint64_t bytes) {
    return address + round_up(bytes == 0 ? 1 : bytes, 16);
}

// The table and a map that should say the same. Each block has an account of its own, so that one that is handed back
// is known by it.
struct Twin {
    LiveTable table;
    std::map<std::uintptr_t, Block> model;
    std::uint32_t last_account = 0;

    Twin() { REQUIRE(table.init()); }

    void insert(std::uintptr_t address, std::uint64_t bytes) {
        std::vector<Block> evicted;
        LiveTable::insert(table.room_for(address, bytes), address, bytes, ++last_account,
                          [&](const Block& block) { evicted.push_back(block); });
        for (const Block& block : evicted) forget(block, address, bytes);
        // One that starts exactly where a new block does was freed behind our back.
        if (model.count(address) != 0) FAIL("the block at ", address, " is still there under one of ", bytes, " bytes");
        model[address] = {last_account, bytes};
    }
    void forget(const Block& block, std::uintptr_t address, std::uint64_t bytes) {
        for (auto at = model.begin(); at != model.end(); ++at) {
            if (at->second.account != block.account) continue;
            if (at->second.bytes != block.bytes)
                FAIL("a block of ", at->second.bytes, " bytes at ", at->first, " came back with ", block.bytes,
                     " for one of ", bytes, " at ", address);
            if (end_of(at->first, block.bytes) <= address || end_of(address, bytes) <= at->first)
                FAIL("a block that lies elsewhere was taken out: ", at->first, ", ", block.bytes, " bytes");
            model.erase(at);
            return;
        }
        FAIL("a block that is not there came back: account ", block.account);
    }
    void remove(std::uintptr_t address) {
        const Block taken = table.remove(address);
        const auto at = model.find(address);
        const Block wanted = at == model.end() ? Block{} : at->second;
        if (taken.account != wanted.account || taken.bytes != wanted.bytes)
            FAIL("removed ", taken.bytes, " bytes, not ", wanted.bytes);
        if (at != model.end()) model.erase(at);
    }
    void check_block(std::uintptr_t address) const {
        const Block seen = table.find_block(address);
        const auto at = model.find(address);
        const Block wanted = at == model.end() ? Block{} : at->second;
        if (seen.account != wanted.account || seen.bytes != wanted.bytes)
            FAIL("saw ", seen.bytes, " bytes at ", address, ", not ", wanted.bytes);
    }
    void compare() const {
        std::map<std::uintptr_t, Block> seen;
        table.each([&](std::uintptr_t address, const Block& block) {
            if (!seen.emplace(address, block).second) FAIL("two blocks at ", address);
        });
        if (seen.size() != model.size()) FAIL(seen.size(), " blocks, not ", model.size());
        for (const auto& [address, block] : model) check_block(address);
        if (!table.is_consistent()) FAIL("the table finds itself inconsistent");
    }
};

// Sizes at which the table changes its ways.
std::uint64_t some_size(Trace& trace) {
    static const std::vector<std::uint64_t> borders{0,
                                                    1,
                                                    15,
                                                    16,
                                                    17,
                                                    32,
                                                    33,
                                                    511,
                                                    512,
                                                    513,
                                                    1024,
                                                    (1ULL << 31) - 1,
                                                    1ULL << 31,
                                                    (1ULL << 31) + 1,
                                                    1ULL << 32,
                                                    (1ULL << 32) + 12345,
                                                    (1ULL << 46) + 7};
    return trace.one_in(3) ? trace.below(700) : trace.pick(borders);
}

// Addresses where things meet: borders of regions, of the large table's granules and of the pages of the small one.
std::uintptr_t some_address(Trace& trace) {
    static const std::vector<std::uintptr_t> borders{
        3 * kRegion,          4 * kRegion,       3 * kRegion + 5 * LiveTable::Region::kChunkBytes,
        3 * kRegion + 0x4000, 3 * kRegion + 512, 0x7ffff0000000,
        0xfffff0000000};
    return trace.pick(borders) + 16 * trace.below(80) - 16 * trace.below(40);
}

}  // namespace

TEST_SUITE_BEGIN("live table");

TEST_CASE("any blocks, also over one another: what goes is handed back, and nothing else goes") {
    for_seeds(40, [](Trace& trace) {
        Twin twin;
        for (int step = 0; step < 3000; ++step) {
            const std::uintptr_t address = some_address(trace);
            if (trace.one_in(3)) {
                twin.remove(address);
            } else {
                twin.insert(address, some_size(trace));
            }
            twin.check_block(some_address(trace));
            twin.check_block(address);
        }
        twin.compare();
    });
}

TEST_CASE("blocks that an allocator could hand out never drive one another out") {
    for_seeds(20, [](Trace& trace) {
        Twin twin;
        std::uintptr_t at = 5 * kRegion - 40'000;
        std::vector<std::uintptr_t> addresses;
        for (int i = 0; i < 1500; ++i) {
            const std::uint64_t bytes = trace.one_in(10) ? 1'000'000 + trace.below(9) : some_size(trace) % 100'000;
            const std::size_t before = twin.model.size();
            twin.insert(at, bytes);
            REQUIRE(twin.model.size() == before + 1);
            addresses.push_back(at);
            at = end_of(at, bytes);
        }
        twin.compare();
        for (const std::uintptr_t address : addresses)
            if (trace.one_in(2)) twin.remove(address);
        twin.compare();
    });
}

TEST_CASE("every size at every offset of a region's end comes back as it was") {
    Twin twin;
    for (const std::uint64_t bytes :
         {0ULL, 1ULL, 16ULL, 17ULL, 511ULL, 512ULL, (1ULL << 31) - 1, 1ULL << 31, 1ULL << 40})
        for (std::uintptr_t granule = 1; granule <= 40; ++granule) {
            const std::uintptr_t address = 7 * kRegion - 16 * granule;
            twin.insert(address, bytes);
            twin.check_block(address);
            twin.remove(address);
        }
    twin.compare();
    CHECK(twin.model.empty());
}

TEST_CASE("one new block over two that were freed behind our back: both come back") {
    struct Placed {
        std::uintptr_t address;
        std::uint64_t bytes;
    };
    const std::vector<Placed> cases[] = {
        // A small one and the large one that came to lie around it; the same under a large one.
        {{0x10000110, 40}, {0x10000000, 4096}, {0x10000110, 24}},
        {{0x10000110, 40}, {0x10000000, 4096}, {0x10000110, 8192}},
        // Two small ones, the second where the new one keeps its size.
        {{0x10000100, 16}, {0x10000110, 40}, {0x10000100, 48}},
        // Two large ones, the second where the new one keeps the rest of its size.
        {{0x10000000, 512}, {0x10000200, 600}, {0x10000000, 1ULL << 33}},
    };
    for (const std::vector<Placed>& blocks : cases) {
        CAPTURE(&blocks - cases);
        Twin twin;
        for (const Placed& block : blocks) twin.insert(block.address, block.bytes);
        twin.compare();
        CHECK(twin.model.size() == 1);
    }
}

TEST_CASE("an emptied table knows nothing, and a place found before finds nothing") {
    Twin twin;
    twin.insert(kRegion + 64, 100);
    twin.insert(kRegion + 4096, 5000);
    twin.insert(9 * kRegion, 1ULL << 34);
    LiveTable::Region* const near = twin.table.find(kRegion + 64);
    LiveTable::Region* const far = twin.table.find(9 * kRegion);
    CHECK(LiveTable::place_of(near, kRegion + 64) == LiveTable::Place::small);
    CHECK(LiveTable::place_of(near, kRegion + 4096) == LiveTable::Place::large);
    CHECK(LiveTable::place_of(near, kRegion + 80) == LiveTable::Place::nowhere);
    twin.table.empty();
    twin.model.clear();
    CHECK(LiveTable::remove(near, kRegion + 64, LiveTable::Place::small).account == 0);
    CHECK(LiveTable::remove(far, 9 * kRegion, LiveTable::Place::large).account == 0);
    twin.compare();
    twin.insert(kRegion + 64, 17);
    twin.compare();
}

TEST_CASE("large blocks alone take little address space, small ones a quarter of what they lie in") {
    const auto own_bytes = [] {
        std::size_t bytes = 0;
        own_ranges.each([&](const OwnRanges::Range& range) { bytes += range.end - range.start; });
        return bytes;
    };
    const std::size_t before = own_bytes();
    Twin twin;
    constexpr std::uintptr_t kMiB = std::uintptr_t{1} << 20;
    for (std::uintptr_t at = 0; at < 256 * kMiB; at += kMiB) twin.insert(3 * kRegion + at, kMiB);
    const std::size_t with_large = own_bytes();
    CHECK(with_large - before < 7 * kMiB);
    for (std::uintptr_t at = 0; at < 256 * kMiB; at += kMiB) twin.insert(5 * kRegion + at, 64);
    CHECK(own_bytes() - with_large < 85 * kMiB);
    twin.compare();
}

TEST_CASE("a small block that is alone takes a page, and a heap a page for each four of its own") {
    constexpr std::uintptr_t kApart = 8 * LiveTable::Region::kStretchBytes;
    constexpr std::int64_t kCount = 64, kMore = 24;  // pages of what finds the words
    const auto pages = [] { return OwnPagesCount().read(false).bytes / static_cast<std::int64_t>(kPage); };
    LiveTable table;
    REQUIRE(table.init());
    const auto insert = [&](std::uintptr_t address) {
        LiveTable::insert(table.room_for(address, 64), address, 64, 1, [](const Block&) {});
    };
    const std::int64_t before = pages();
    for (std::uintptr_t i = 0; i < kCount; ++i) insert(3 * kRegion + i * kApart);
    const std::int64_t alone = pages();
    CHECK(alone <= before + kCount + kMore);
    for (std::uintptr_t at = 0; at < kCount * kApart; at += 4096) insert(3 * kRegion + at);
    CHECK(pages() == alone + 7 * kCount);
}

TEST_CASE("blocks above 2^47 are as others") {  // the heap of aarch64, and what programs ask for elsewhere
    Twin twin;
    constexpr std::uintptr_t kLast = (std::uintptr_t{1} << kMostAddressBits) - kRegion;
    for (const std::uintptr_t base : {std::uintptr_t{1} << 47, std::uintptr_t{0xaaaa'0000'0000},
                                      (std::uintptr_t{1} << kAddressBits) + 3 * kRegion, kLast - kRegion / 2}) {
        for (std::uintptr_t i = 0; i < 1000; ++i) twin.insert(base + i * 4096, 16 + i * 3);
        for (std::uintptr_t i = 0; i < 1000; i += 2) twin.remove(base + i * 4096);
        for (std::uintptr_t i = 0; i < 1000; ++i) twin.check_block(base + i * 4096);
        twin.check_block((base ^ std::uintptr_t{1} << 47) + 4096);  // where one bit alone differs
        twin.compare();
    }
    CHECK_THROWS_AS(twin.table.room_for((std::uintptr_t{1} << kMostAddressBits) + 4 * kRegion, 1), std::bad_alloc);
}

TEST_CASE("addresses that differ above the bits of the table are not taken for one another") {
    Twin twin;
    constexpr std::uintptr_t kNear = 7 * kRegion, kFar = kNear + (std::uintptr_t{1} << kAddressBits);
    for (const auto& [first, other] : {std::pair{kNear, kFar}, std::pair{kFar + kRegion, kNear + kRegion}}) {
        twin.insert(first, 64);
        CHECK_THROWS_AS(twin.table.room_for(other + LiveTable::Region::kChunkBytes, 64), SharedRegion);
        CHECK_THROWS_AS(twin.table.room_for(other + LiveTable::Region::kChunkBytes, 1000), SharedRegion);
        twin.insert(first + LiveTable::Region::kChunkBytes, 64);
        twin.compare();
    }
}

TEST_CASE("addresses nothing was put near, and addresses that cannot be") {
    LiveTable table;
    REQUIRE(table.init());
    CHECK(table.find(0x12345678) == nullptr);
    CHECK(table.find_block(0x12345678).account == 0);
    CHECK(table.remove(0x12345678).account == 0);
    CHECK(table.find_block(std::uintptr_t{1} << 47).account == 0);
    CHECK_THROWS_AS(table.room_for(~std::uintptr_t{0}, 1), std::bad_alloc);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
