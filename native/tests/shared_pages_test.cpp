#include "mappings/shared_pages.h"

#include <map>
#include <utility>
#include <vector>

#include "mappings/mappings.h"
#include "support.h"

namespace hiwater::tests {

namespace {

constexpr std::uint64_t kSpan = 60;

struct Page {
    std::uint32_t account = 0, mappings = 0;
};

using Sums = std::map<std::uint32_t, std::pair<std::int64_t, std::int64_t>>;  // by account: pages, runs

// What is told of every change, added up.
struct Told {
    Sums sums;
    void operator()(std::uint32_t account, std::int64_t pages, std::int64_t runs) {
        sums[account].first += pages;
        sums[account].second += runs;
    }
};

Sums sums_of(const SharedPages& pages) {
    Sums sums;
    pages.each([&](SharedPlace start, SharedPlace end, std::uint32_t account) {
        sums[account].first += static_cast<std::int64_t>(end - start);
        ++sums[account].second;
    });
    return sums;
}

Sums without_zeros(const Sums& sums) {
    Sums rest;
    for (const auto& [account, sum] : sums)
        if (sum.first != 0 || sum.second != 0) rest[account] = sum;
    return rest;
}

}  // namespace

TEST_SUITE_BEGIN("shared pages");

TEST_CASE("a page counts for the first of its mappings, until the last is gone") {
    for_seeds(60, [](Trace& trace) {
        struct Mapping {
            std::uint64_t start, end;
        };
        SharedPages pages;
        Told told;
        std::vector<Page> place(kSpan);
        std::vector<Mapping> mappings;
        const SharedPlace base = shared_place(3, 0);
        for (int step = 0; step < 300; ++step) {
            CAPTURE(step);
            if (mappings.empty() || trace.below(2) != 0) {
                const std::uint64_t start = trace.below(kSpan), end = start + 1 + trace.below(kSpan - start);
                const auto account = static_cast<std::uint32_t>(1 + trace.below(4));
                pages.map(base + start, base + end, account, std::ref(told));
                mappings.push_back({start, end});
                for (std::uint64_t at = start; at < end; ++at)
                    if (place[at].mappings++ == 0) place[at].account = account;
            } else {  // the whole of a mapping, or its first pages
                const std::size_t which = trace.below(mappings.size());
                const Mapping mapping = mappings[which];
                const std::uint64_t end = mapping.start + 1 + trace.below(mapping.end - mapping.start);
                pages.unmap(base + mapping.start, base + end, std::ref(told));
                mappings.erase(mappings.begin() + static_cast<std::ptrdiff_t>(which));
                if (end < mapping.end) mappings.push_back({end, mapping.end});
                for (std::uint64_t at = mapping.start; at < end; ++at) --place[at].mappings;
            }
            std::map<std::uint32_t, std::int64_t> held, told_pages;
            for (const Page& page : place)
                if (page.mappings != 0) ++held[page.account];
            for (const auto& [account, sum] : without_zeros(told.sums)) told_pages[account] = sum.first;
            REQUIRE(told_pages == held);
            REQUIRE(without_zeros(told.sums) == sums_of(pages));
        }
        for (const Mapping& mapping : mappings) pages.unmap(base + mapping.start, base + mapping.end, std::ref(told));
        CHECK(without_zeros(told.sums).empty());
        CHECK(sums_of(pages).empty());
    });
}

TEST_CASE("a run that a second mapping cut is one again when that mapping is gone") {
    SharedPages pages;
    Told told;
    pages.map(100, 110, 1, std::ref(told));
    pages.map(103, 106, 2, std::ref(told));
    CHECK(told.sums[1] == std::pair<std::int64_t, std::int64_t>{10, 3});
    pages.unmap(103, 106, std::ref(told));
    CHECK(told.sums[1] == std::pair<std::int64_t, std::int64_t>{10, 1});
    CHECK(told.sums.count(2) == 0);
}

TEST_CASE("two mappings side by side stay two") {
    SharedPages pages;
    Told told;
    pages.map(100, 104, 1, std::ref(told));
    pages.map(104, 108, 1, std::ref(told));
    pages.map(100, 108, 1, std::ref(told));
    pages.unmap(100, 108, std::ref(told));
    CHECK(told.sums[1] == std::pair<std::int64_t, std::int64_t>{8, 2});
}

TEST_CASE("parts of a piece begin at their own page") {
    constexpr std::uintptr_t kBase = 0x7f0000000000;
    Mappings mappings;
    mappings.add(kBase, kBase + 10 * kPage, 1, 3, shared_place(7, 20));
    std::vector<SharedPlace> taken;
    mappings.take(kBase + 4 * kPage, kBase + 6 * kPage,
                  [&](auto, auto, const Piece& piece, int) { taken.push_back(piece.place); });
    CHECK(taken == std::vector<SharedPlace>{shared_place(7, 24)});
    CHECK(mappings.piece_at(kBase + kPage).place == shared_place(7, 21));
    CHECK(mappings.piece_at(kBase + 5 * kPage).account == 0);
    CHECK(mappings.piece_at(kBase + 8 * kPage).place == shared_place(7, 28));
}

TEST_CASE("objects made here are known by what the kernel calls them") {
    MadeObjects made;
    CHECK(made.find({1, 2}) == 0);
    const std::uint32_t first = made.add({1, 2});
    CHECK(first != 0);
    CHECK(made.add({1, 2}) == first);
    CHECK(made.find({1, 2}) == first);
    CHECK(made.find({2, 2}) == 0);
    CHECK(made.add_unnamed() != first);
    for (std::uint64_t number = 0; number < MadeObjects::kMost; ++number) made.add({9, number + 1});
    CHECK(made.find({1, 2}) == 0);  // forgotten: the oldest
    CHECK(made.find({9, MadeObjects::kMost}) != 0);
    made.reset();
    CHECK(made.find({9, MadeObjects::kMost}) == 0);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
