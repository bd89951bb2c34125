#include "base/own_ranges.h"

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "support.h"

namespace hiwater::tests {

TEST_SUITE_BEGIN("own ranges");

namespace {

std::map<std::uintptr_t, std::uintptr_t> listed(const OwnRanges& ranges) {
    std::map<std::uintptr_t, std::uintptr_t> out;
    ranges.each([&](const OwnRanges::Range& range) { CHECK(out.emplace(range.start, range.end).second); });
    return out;
}

const void* at(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }

}  // namespace

TEST_CASE("what was added and not removed is listed") {
    for_seeds(30, [](Trace& trace) {
        const auto ours = std::make_unique<OwnRanges>();
        std::map<std::uintptr_t, std::uintptr_t> model;
        for (int step = 0; step < 500; ++step) {
            const std::uintptr_t start = 0x1000 * (1 + trace.below(300));
            if (const auto found = model.find(start); found != model.end()) {
                ours->remove(at(start));
                model.erase(found);
            } else {
                const std::size_t bytes = 0x1000 * (1 + trace.below(9));
                ours->add(at(start), bytes);
                model.emplace(start, start + bytes);
            }
            if (trace.one_in(20)) ours->remove(at(0x7000'0000));  // never added
            REQUIRE(listed(*ours) == model);
        }
    });
}

TEST_CASE("a full table forgets what is added then, and only that") {
    const auto ours = std::make_unique<OwnRanges>();
    for (std::size_t i = 0; i < OwnRanges::kMost + 10; ++i) ours->add(at((i + 1) << 12), 4096);
    CHECK(listed(*ours).size() == OwnRanges::kMost);
    ours->remove(at(1 << 12));
    ours->add(at(0x5000'0000), 4096);
    CHECK(listed(*ours).count(0x5000'0000) == 1);
}

TEST_CASE("threads add and remove at once, and one reads") {
    const auto ours = std::make_unique<OwnRanges>();
    std::vector<std::thread> threads;
    for (std::uintptr_t t = 1; t <= 4; ++t) {
        threads.emplace_back([&ours, t] {
            for (std::uintptr_t i = 0; i < 20'000; ++i) {
                const std::uintptr_t start = t << 40 | (i % 50 + 1) << 12;
                ours->add(at(start), 4096 * t);
                if (i % 2 == 0 || i >= 50) ours->remove(at(start));
            }
        });
    }
    bool whole = true;
    for (int i = 0; i < 200; ++i)
        ours->each([&](const auto& range) { whole = whole && range.end - range.start == 4096 * (range.start >> 40); });
    for (auto& thread : threads) thread.join();
    CHECK(whole);
    CHECK(listed(*ours).size() == 4 * 25);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
