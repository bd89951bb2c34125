#include "base/pages.h"

#include <set>
#include <vector>

#include "support.h"

namespace hiwater::tests {

TEST_SUITE_BEGIN("pages");

TEST_CASE("a page vector does what a vector does, and new elements are zero") {
    for_seeds(20, [](Trace& trace) {
        PageVector<std::uint32_t> ours;
        std::vector<std::uint32_t> model;
        for (int step = 0; step < 2000; ++step) {
            if (trace.one_in(100)) {
                const std::size_t n = trace.below(5000);
                ours.resize(n);
                model.resize(n);
            } else if (trace.one_in(500)) {
                ours.reset();
                model.clear();
            } else {
                const auto value = static_cast<std::uint32_t>(trace.word());
                ours.push_back(value);
                model.push_back(value);
            }
            REQUIRE(ours.size() == model.size());
        }
        for (std::size_t i = 0; i < model.size(); ++i)
            if (ours[i] != model[i]) FAIL("element ", i, " is ", ours[i], ", not ", model[i]);
    });
}

TEST_CASE("elements that do not divide a page keep their values as the vector grows") {
    struct Odd {
        char bytes[24];
    };
    PageVector<Odd> ours;
    for (int i = 0; i < 3000; ++i) {
        Odd odd{};
        odd.bytes[0] = static_cast<char>(i);
        odd.bytes[23] = static_cast<char>(i >> 8);
        ours.push_back(odd);
    }
    for (int i = 0; i < 3000; ++i)
        if (ours[i].bytes[0] != static_cast<char>(i) || ours[i].bytes[23] != static_cast<char>(i >> 8)) FAIL("element ", i);
    CHECK(ours.capacity_bytes() % kPage == 0);
    CHECK(ours.capacity_bytes() >= 3000 * sizeof(Odd));
}

TEST_CASE("a page vector that cannot grow says so and is as before") {
    PageVector<std::uint64_t> ours;
    for (std::uint64_t i = 0; i < 1000; ++i) ours.push_back(i);
    CHECK_THROWS_AS(ours.resize(std::size_t{1} << 50), std::bad_alloc);
    CHECK(ours.size() == 1000);
    CHECK(ours[999] == 999);
    ours.push_back(1000);
    CHECK(ours[1000] == 1000);
}

TEST_CASE("swapped page vectors change places whole") {
    PageVector<int> a, b;
    a.push_back(1);
    b.resize(3);
    a.swap(b);
    CHECK(a.size() == 3);
    CHECK(b.size() == 1);
    CHECK(b[0] == 1);
}

TEST_CASE("pieces do not overlap, are used again, and are aligned") {
    for_seeds(10, [](Trace& trace) {
        const std::size_t wanted = 1 + trace.below(128);
        PiecePool pool(wanted);
        std::set<char*> held;
        for (int step = 0; step < 3000; ++step) {
            if (!held.empty() && trace.one_in(3)) {
                pool.give(*held.begin());
                held.erase(held.begin());
                continue;
            }
            auto* piece = static_cast<char*>(pool.take());
            REQUIRE(reinterpret_cast<std::uintptr_t>(piece) % 16 == 0);
            const auto [at, fresh] = held.insert(piece);
            REQUIRE(fresh);
            if (at != held.begin()) REQUIRE(*std::prev(at) + wanted <= piece);
            if (std::next(at) != held.end()) REQUIRE(piece + wanted <= *std::next(at));
            __builtin_memset(piece, 0xa5, wanted);
        }
        pool.reset();
        CHECK(pool.take() != nullptr);
    });
}

TEST_CASE("the last piece given is the next one taken") {
    PiecePool pool(64);
    pool.take();
    void* piece = pool.take();
    pool.give(piece);
    CHECK(pool.take() == piece);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
