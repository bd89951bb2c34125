#include "heap/sampling.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "heap/sample_table.h"
#include "support.h"

namespace hiwater::tests {

using namespace sampling;

TEST_SUITE_BEGIN("sampling");

namespace {

constexpr std::uint64_t kSample = 4096;

// A thread's stream, sampled as the recorder does.
struct Stream {
    Random random;
    Cells cells;
    std::int64_t left = 0;
    explicit Stream(std::uint64_t seed) {
        random.state = seed * 2 + 1;
        for (int i = 0; i < 8; ++i) random.next();
        cells.renew(&left, random, kSample);
    }
    bool samples(std::uint64_t bytes) {
        const auto size = static_cast<std::int64_t>(bytes);
        left -= size;
        if (left > 0) return false;
        const bool large = bytes >= kSample;
        if (large) left += size;  // not part of the stream
        return cells.renew(&left, random, kSample) || large;
    }
};

}  // namespace

TEST_CASE("every cell of a stream has one pick, and so a long stream has as many as it has cells") {
    for_seeds(200, [](Trace& trace) {
        Random random;
        Cells cells;
        random.state = trace.word() | 1;
        std::int64_t at = cells.first(random, kSample);
        REQUIRE(at >= 1);
        std::int64_t picks = 1;
        constexpr std::int64_t kCells = 500;
        for (; at <= kCells * static_cast<std::int64_t>(kSample); ++picks) {
            const std::int64_t next = cells.next(random, kSample);
            REQUIRE(next >= 1);
            REQUIRE(next < 2 * static_cast<std::int64_t>(kSample));
            at += next;
        }
        REQUIRE(std::abs(picks - 1 - kCells) <= 1);
    });
}

TEST_CASE("a block is sampled with the probability that its weight is made of, wherever in the stream it lies") {
    for (const std::uint64_t size :
         {std::uint64_t{16}, std::uint64_t{500}, kSample / 2, kSample * 3 / 4, kSample - 1}) {
        for (const std::uint64_t before : {std::uint64_t{0}, std::uint64_t{100}, kSample + 777, 5 * kSample}) {
            int sampled = 0;
            constexpr int kTries = 60'000;
            for (int i = 0; i < kTries; ++i) {
                Stream stream(static_cast<std::uint64_t>(i) * 7919 + size);
                for (std::uint64_t passed = 0; passed < before; passed += 64)
                    stream.samples(std::min<std::uint64_t>(64, before - passed));
                sampled += stream.samples(size) ? 1 : 0;
            }
            const double p = probability(size, kSample), error = std::sqrt(p * (1 - p) / kTries);
            CAPTURE(size);
            CAPTURE(before);
            CHECK(std::abs(static_cast<double>(sampled) / kTries - p) < 4.5 * error + 1e-3);
        }
    }
}

TEST_CASE("no block of the step's size and more passes unseen, wherever the next sampled byte is") {
    for_seeds(300, [](Trace& trace) {
        Stream stream(trace.seed() + 7);
        for (int i = 0; i < 2'000; ++i) {
            if (trace.one_in(3)) stream.samples(1 + trace.below(kSample - 1));
            const std::int64_t left = stream.left;
            REQUIRE(left <= static_cast<std::int64_t>(kSample));
            REQUIRE(stream.samples(kSample + trace.below(3 * kSample)));
            REQUIRE(stream.left == left);  // it has no part in the sampling of the others
        }
    });
}

TEST_CASE("what is always recorded stands for itself, what is sampled for more, and never for less") {
    CHECK(weight(kSample, kSample).bytes == static_cast<std::int64_t>(kSample));
    CHECK(weight(kSample, kSample).blocks == 1);
    CHECK(weight(kSample * 100, kSample).bytes == static_cast<std::int64_t>(kSample * 100));
    for (std::uint64_t n = 1; n < kSample; ++n) {
        const Weight w = weight(n, kSample);
        REQUIRE(w.bytes >= static_cast<std::int64_t>(n));
        REQUIRE(w.blocks >= 1);
        if (n <= kSample / 100) REQUIRE(w.bytes == static_cast<std::int64_t>(kSample));
    }
    CHECK(weight(0, kSample).bytes == 0);
}

TEST_CASE("sums of a random mixture are unbiased, and within the error that is claimed for them") {
    int within = 0, all = 0;
    double bias = 0, squares = 0;
    for_seeds(400, [&](Trace& trace) {
        Stream stream(trace.seed() + 99);
        std::map<int, std::pair<double, double>> sums;  // by call path: true, estimated
        for (int i = 0; i < 20'000; ++i) {
            const int path = static_cast<int>(trace.below(5));
            const std::uint64_t size = 1 + trace.below(path == 4 ? kSample - 1 : 40u << path);
            const bool freed = trace.one_in(3);
            const bool is_sampled = stream.samples(size);
            if (freed) continue;
            sums[path].first += static_cast<double>(size);
            if (is_sampled) sums[path].second += static_cast<double>(weight(size, kSample).bytes);
        }
        for (const auto& [path, sum] : sums) {
            const double claimed = std::sqrt(kSample * sum.second);
            within += std::abs(sum.first - sum.second) <= 3 * claimed ? 1 : 0;
            const double off = (sum.second - sum.first) / sum.first;
            bias += off;
            squares += off * off;
            ++all;
        }
    });
    CHECK(within >= 0.99 * all);
    // A hundredth, unless there are too few traces to tell.
    CHECK(std::abs(bias / all) < std::max(0.01, 3.5 * std::sqrt(squares) / all));
}

TEST_CASE("a pattern that repeats with the size of a cell is sampled no worse than by chance") {
    // Of every cell's worth of bytes one path allocates a tenth, always at the same place: the worst case for points
    // that are evenly apart.
    double squares = 0, claimed = 0;
    constexpr int kRuns = 600, kRounds = 300;
    for (int run = 0; run < kRuns; ++run) {
        Stream stream(static_cast<std::uint64_t>(run) * 31 + 5);
        double estimate = 0;
        for (int round = 0; round < kRounds; ++round) {
            for (std::uint64_t at = 0; at < kSample; at += 32)
                if (stream.samples(32) && at < kSample / 10) estimate += static_cast<double>(weight(32, kSample).bytes);
        }
        const double truth = kRounds * 32.0 * static_cast<double>((kSample / 10 + 31) / 32);
        squares += (estimate - truth) * (estimate - truth);
        claimed += kSample * truth;
    }
    CHECK(squares < 1.15 * claimed);  // sums of squares over 600 runs: within 6 % in most
}

TEST_CASE("the table of sampled blocks does what a map does") {
    for_seeds(30, [](Trace& trace) {
        SampleTable table;
        table.init();
        std::map<std::uintptr_t, Block> model;
        std::uint32_t account = 0;
        for (int step = 0; step < 20'000; ++step) {
            // Few pages, so that the filter counts; now and then far away, so that it has holes.
            const std::uintptr_t address =
                0x7f00'0000'0000 + trace.below(400) * 16 + (trace.one_in(4) ? trace.below(50) << 24 : 0);
            if (trace.one_in(2)) {
                const Block stale = table.insert(address, step, ++account);
                const auto at = model.find(address);
                REQUIRE(stale.account == (at == model.end() ? 0 : at->second.account));
                model[address] = {account, static_cast<std::uint64_t>(step)};
            } else {
                REQUIRE((model.count(address) == 0 || table.may_hold(address)));
                const Block taken = table.remove(address);
                const auto at = model.find(address);
                REQUIRE(taken.account == (at == model.end() ? 0 : at->second.account));
                if (at != model.end()) model.erase(at);
            }
            if (trace.one_in(500))
                REQUIRE(table.find_block(address).account == (model.count(address) != 0 ? model[address].account : 0));
        }
        CHECK(table.is_consistent());
        CHECK(table.size() == model.size());
        std::size_t seen = 0;
        table.each([&](std::uintptr_t address, const Block& block) {
            ++seen;
            CHECK(model.at(address).bytes == block.bytes);
        });
        CHECK(seen == model.size());
        table.empty();
        CHECK(!table.may_hold(0x7f00'0000'0000));
        CHECK(table.is_consistent());
    });
}

TEST_CASE("addresses that differ in their highest bit alone have filters of their own") {
    SampleTable table;
    table.init();
    table.insert(0xffff'0000'0000, 1, 7);
    CHECK(table.may_hold(0xffff'0000'0000));
    CHECK(!table.may_hold(0x7fff'0000'0000));
}

TEST_CASE("a page with more sampled blocks than its filter can count loses none") {
    SampleTable table;
    table.init();
    for (std::uintptr_t i = 0; i < 256; ++i) table.insert(0x10000 + i * 16, 1, 7);
    for (std::uintptr_t i = 0; i < 256; ++i) {
        REQUIRE(table.may_hold(0x10000 + i * 16));
        REQUIRE(table.remove(0x10000 + i * 16).account == 7);
    }
    CHECK(table.size() == 0);
    CHECK(table.is_consistent());
}

TEST_SUITE_END();

}  // namespace hiwater::tests
