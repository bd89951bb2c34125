#include "mappings/mappings.h"

#include <tuple>
#include <vector>

#include "support.h"

namespace hiwater::tests {

namespace {

constexpr std::uintptr_t kBase = 0x7f0000000000, kSpan = 200;

// Every place of a small address space says which mapping lies there; 0 is none. A mapping that is split is two from
// then on.
struct Places {
    struct Owner {
        std::uint32_t account, protection;
    };
    using Taken = std::tuple<std::uintptr_t, std::uintptr_t, std::uint32_t, std::uint32_t,
                             int>;  // from, to, account, protection, left

    std::vector<std::size_t> place = std::vector<std::size_t>(kSpan, 0);
    std::vector<Owner> owners{{0, 0}};

    void add(std::uintptr_t start, std::uintptr_t end, std::uint32_t account, std::uint32_t protection) {
        owners.push_back({account, protection});
        for (std::uintptr_t at = start; at < end; ++at) place[at] = owners.size() - 1;
    }
    std::vector<Taken> take(std::uintptr_t start, std::uintptr_t end) {
        std::vector<Taken> taken;
        for (std::uintptr_t at = start; at < end;) {
            const std::size_t owner = place[at];
            std::uintptr_t to = at;
            while (to < end && place[to] == owner) ++to;
            if (owner != 0) {
                const bool before = at > 0 && place[at - 1] == owner, behind = to < kSpan && place[to] == owner;
                taken.emplace_back(kBase + at, kBase + to, owners[owner].account, owners[owner].protection,
                                   before + behind);
                if (behind) {
                    std::uintptr_t rest = to;
                    while (rest < kSpan && place[rest] == owner) ++rest;
                    add(to, rest, owners[owner].account, owners[owner].protection);
                }
                for (std::uintptr_t i = at; i < to; ++i) place[i] = 0;
            }
            at = to;
        }
        return taken;
    }
    std::vector<Taken> all() const {
        Places copy = *this;
        return copy.take(0, kSpan);
    }
};

std::vector<Places::Taken> take(Mappings& mappings, std::uintptr_t start, std::uintptr_t end) {
    std::vector<Places::Taken> taken;
    mappings.take(kBase + start, kBase + end,
                  [&](std::uintptr_t from, std::uintptr_t to, const Piece& piece, int left) {
                      taken.emplace_back(from, to, piece.account, piece.protection, left);
                  });
    return taken;
}

std::vector<Places::Taken> all(const Mappings& mappings) {
    std::vector<Places::Taken> pieces;
    mappings.each([&](std::uintptr_t start, std::uintptr_t end, const Piece& piece) {
        pieces.emplace_back(start, end, piece.account, piece.protection, 0);
    });
    return pieces;
}

}  // namespace

TEST_SUITE_BEGIN("mappings");

TEST_CASE("mappings are what an array of places says") {
    for_seeds(60, [](Trace& trace) {
        Mappings mappings;
        Places places;
        for (int step = 0; step < 400; ++step) {
            const std::uintptr_t start = trace.below(kSpan), end = start + 1 + trace.below(kSpan - start);
            CAPTURE(step);
            REQUIRE(take(mappings, start, end) == places.take(start, end));
            if (trace.below(3) != 0) {
                const auto account = static_cast<std::uint32_t>(1 + trace.below(9)),
                           protection = static_cast<std::uint32_t>(trace.below(4));
                mappings.add(kBase + start, kBase + end, account, protection);
                places.add(start, end, account, protection);
                REQUIRE(mappings.end_of(kBase + start) == kBase + end);
            }
            REQUIRE(mappings.is_consistent());
            REQUIRE(all(mappings) == places.all());
        }
        REQUIRE(mappings.size() == all(mappings).size());
        mappings.reset();
        CHECK(mappings.size() == 0);
    });
}

TEST_CASE("one mapping cut in two: two pieces are left, the middle is taken") {
    Mappings mappings;
    mappings.add(kBase + 10, kBase + 40, 3, 1);
    CHECK(take(mappings, 20, 30) == std::vector<Places::Taken>{{kBase + 20, kBase + 30, 3, 1, 2}});
    CHECK(all(mappings) ==
          std::vector<Places::Taken>{{kBase + 10, kBase + 20, 3, 1, 0}, {kBase + 30, kBase + 40, 3, 1, 0}});
    CHECK(mappings.end_of(kBase + 20) == 0);
}

TEST_CASE("a range that ends before it begins, or goes past the last address, takes nothing") {
    // munmap() of a nonsense length is seen before the kernel refuses it.
    Mappings mappings;
    mappings.add(kBase + 10, kBase + 40, 3, 1);
    CHECK(take(mappings, 30, 20).empty());
    CHECK(take(mappings, 30, 30).empty());
    CHECK(mappings.is_consistent());
    CHECK(all(mappings) == std::vector<Places::Taken>{{kBase + 10, kBase + 40, 3, 1, 0}});
}

TEST_SUITE_END();

}  // namespace hiwater::tests
