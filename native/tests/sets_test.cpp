#include <map>
#include <set>
#include <vector>

#include "stacks/call_tree.h"
#include "base/id_set.h"
#include "base/pages.h"
#include "support.h"

namespace hiwater::tests {

TEST_SUITE_BEGIN("sets");

TEST_CASE("an id set finds what was put in, by hashes good and bad") {
    for_seeds(12, [](Trace& trace) {
        // Few different hashes make long runs of neighbours; the last few places make runs that go round the end.
        const std::uint64_t hashes = trace.one_in(2) ? 7 : ~std::uint64_t{0};
        std::vector<std::uint64_t> keys{0};  // by number
        const auto hash = [&](std::uint64_t key) {
            return trace.seed() % 3 == 0 ? ~std::uint64_t{0} - key % 5 : mix(key) % hashes;
        };
        IdSet set;
        std::map<std::uint64_t, std::uint32_t> model;
        const std::size_t count = hashes == 7 || trace.seed() % 3 == 0 ? 900 : 5000;
        for (std::size_t step = 0; step < count; ++step) {
            const std::uint64_t key = trace.below(count);
            const std::uint32_t found = set.find(hash(key), [&](std::uint32_t id) { return keys[id] == key; });
            const auto known = model.find(key);
            REQUIRE(found == (known == model.end() ? 0 : known->second));
            if (found != 0) continue;
            const auto id = static_cast<std::uint32_t>(keys.size());
            keys.push_back(key);
            set.add(id, hash(key));
            model[key] = id;
        }
        REQUIRE(set.size() == model.size());
        set.reset();
        CHECK(set.find(hash(1), [](std::uint32_t) { return true; }) == 0);
    });
}

TEST_CASE("an id set forgets what is taken out of it, and nothing else") {
    for_seeds(12, [](Trace& trace) {
        const std::uint64_t hashes = trace.one_in(2) ? 7 : ~std::uint64_t{0};
        const auto hash = [&](std::uint32_t id) {
            return trace.seed() % 3 == 0 ? ~std::uint64_t{0} - id % 5 : mix(id) % hashes;
        };
        IdSet set;
        std::set<std::uint32_t> model;
        for (int step = 0; step < 4000; ++step) {
            const auto id = static_cast<std::uint32_t>(1 + trace.below(600));
            if (model.erase(id) == 1) {
                set.remove(id, hash(id));
            } else {
                set.add(id, hash(id));
                model.insert(id);
            }
            REQUIRE(set.size() == model.size());
        }
        for (std::uint32_t id = 1; id <= 600; ++id)
            REQUIRE(set.find(hash(id), [&](std::uint32_t other) { return other == id; }) ==
                    (model.contains(id) ? id : 0));
    });
}

TEST_CASE("a set that grows never has its pages twice") {
    IdSet set;
    std::uint32_t id = 0;
    const auto grow_past = [&](std::size_t bytes) {
        while (set.own_bytes() < bytes) ++id, set.add(id, mix(id));
    };
    grow_past(std::size_t{4} << 20);
    const auto before = static_cast<std::int64_t>(set.own_bytes());
    const std::int64_t others = put_pages.most() - before;
    put_pages.read_and_reset_highest();
    grow_past(set.own_bytes() + 1);
    const auto grown = static_cast<std::int64_t>(set.own_bytes());
    const std::int64_t highest = put_pages.read_and_reset_highest() - others;
    CHECK(put_pages.most() - others == grown);
    CHECK(highest <= grown + (1 << 20));
    for (std::uint32_t each = 1; each <= id; ++each)
        REQUIRE(set.find(mix(each), [each](std::uint32_t found) { return found == each; }) == each);
}

TEST_CASE("an address map is a map, also with removals in crowded places") {
    for_seeds(20, [](Trace& trace) {
        AddressMap ours;
        std::map<const void*, std::uint32_t> model;
        const std::uint64_t addresses = trace.one_in(2) ? 400 : 8000;
        for (int step = 0; step < 8000; ++step) {
            const auto* address = reinterpret_cast<const void*>(0x555500000000 + 64 * (1 + trace.below(addresses)));
            if (trace.below(5) < 2) {
                REQUIRE(ours.remove(address) == (model.erase(address) == 1));
            } else {
                const auto number = static_cast<std::uint32_t>(1 + trace.below(1'000'000));
                ours.put(address, number);
                model[address] = number;
            }
            REQUIRE(ours.size() == model.size());
        }
        for (std::uint64_t i = 1; i <= addresses; ++i) {
            const auto* address = reinterpret_cast<const void*>(0x555500000000 + 64 * i);
            const auto known = model.find(address);
            REQUIRE(ours.find(address) == (known == model.end() ? 0 : known->second));
        }
        ours.reset();
        CHECK(ours.size() == 0);
        CHECK_FALSE(ours.remove(&ours));
    });
}

TEST_SUITE_END();

}  // namespace hiwater::tests
