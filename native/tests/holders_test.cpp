// Sets of objects, paths and what they retain, against brute force over random graphs.
#include <deque>
#include <map>
#include <set>

#include "holders/traversal.h"
#include "support.h"

namespace hiwater::tests {

using namespace holders;

namespace {

const void* as_type(std::uint64_t number) { return reinterpret_cast<const void*>(number + 1); }

// Objects at addresses as a program's are: many near each other, some alone, a few at odd multiples of 8.
struct FakeHeap {
    struct Object {
        std::uintptr_t address = 0;
        std::vector<std::size_t> refers_to;
        std::int64_t references = 0;
        const void* type = nullptr;
        std::uint64_t bytes = 0;
        bool is_listed = true, is_immortal = false;
    };
    std::vector<Object> objects;
    std::map<std::uintptr_t, std::size_t> places;
    std::vector<std::size_t> roots;  // each a variable of a module of its own
    std::set<std::size_t> foreign;   // that something outside refers to
    std::map<std::uintptr_t, std::uintptr_t> kept_in_words;

    template <typename Visit>
    void each_tracked(Visit visit) {
        for (const Object& object : objects)
            if (object.is_listed) visit(object.address);
    }
    template <typename Visit>
    void each_root(Visit visit) {
        for (const std::size_t root : roots)
            visit(Label{HW_MODULE, as_type(root)}, Label{HW_VARIABLE, as_type(root)}, objects[root].address);
    }
    template <typename Visit>
    void references(std::uintptr_t address, bool, Visit visit) {
        for (const std::size_t to : objects[places.at(address)].refers_to)
            visit(Label{HW_ITEM, nullptr}, objects[to].address);
    }
    template <typename Visit>
    void hidden(std::uintptr_t address, Visit visit) const {
        if (const auto found = kept_in_words.find(address); found != kept_in_words.end()) visit(found->second);
    }
    bool is_container(std::uintptr_t address) const { return !objects[places.at(address)].refers_to.empty(); }
    bool is_listed(std::uintptr_t address) const { return objects[places.at(address)].is_listed; }
    bool is_immortal(std::uintptr_t address) const { return objects[places.at(address)].is_immortal; }
    std::int64_t references_to(std::uintptr_t address) const { return objects[places.at(address)].references; }
    const void* type_of(std::uintptr_t address) const { return objects[places.at(address)].type; }
    void know_objects(const ObjectSet&) {}
    template <typename Visit>
    void measure(std::uintptr_t address, Visit visit) {
        const Object& object = objects[places.at(address)];
        visit(static_cast<std::uint32_t>(object.bytes % 5), object.bytes);
    }
};

FakeHeap some_heap(Trace& trace, std::uint64_t types) {
    FakeHeap heap;
    const std::size_t count = 2 + trace.below(60);
    std::uintptr_t address = 0x7f0000000000;
    for (std::size_t i = 0; i < count; ++i) {
        address += trace.one_in(9) ? (std::uintptr_t{1} << 22) * (1 + trace.below(3)) : 16 * (1 + trace.below(8));
        if (trace.one_in(30)) address ^= 8;
        heap.places[address] = i;
        heap.objects.push_back(
            {address, {}, 0, as_type(types == 0 ? 1000 + i : trace.below(types)), 1 + trace.below(1000), true, false});
    }
    for (std::uint64_t edge = trace.below(3 * count); edge-- > 0;) {
        const std::size_t from = trace.below(count),
                          to = trace.one_in(3) ? trace.below(count) : std::min(count - 1, from + 1 + trace.below(4));
        heap.objects[from].refers_to.push_back(to);
        ++heap.objects[to].references;
    }
    for (std::size_t i = 0; i < count; ++i) {
        if (trace.one_in(12)) heap.roots.push_back(i), ++heap.objects[i].references;
        if (trace.one_in(15)) heap.foreign.insert(i), ++heap.objects[i].references;
    }
    // What is not listed is found only where a listed object refers to it.
    for (std::size_t i = 0; i < count; ++i)
        for (const std::size_t to : heap.objects[i].refers_to)
            if (heap.objects[i].is_listed && to != i && trace.one_in(6))
                heap.objects[to].is_listed = heap.objects[to].refers_to.empty();
    return heap;
}

using Objects = std::set<std::size_t>;

// What can be reached from `from` without `without`.
Objects reached(const FakeHeap& heap, const Objects& from, const Objects& without = {}) {
    Objects seen;
    std::deque<std::size_t> queue(from.begin(), from.end());
    while (!queue.empty()) {
        const std::size_t at = queue.front();
        queue.pop_front();
        if (without.count(at) != 0 || !seen.insert(at).second) continue;
        for (const std::size_t to : heap.objects[at].refers_to) queue.push_back(to);
    }
    return seen;
}

// All that is held from outside: roots, then what foreign code holds of the rest, then garbage.
Objects all_roots(const FakeHeap& heap) {
    Objects roots(heap.roots.begin(), heap.roots.end());
    const Objects named = reached(heap, roots);
    for (const std::size_t object : heap.foreign)
        if (named.count(object) == 0) roots.insert(object);
    const Objects held = reached(heap, roots);
    for (std::size_t i = 0; i < heap.objects.size(); ++i)
        if (held.count(i) == 0) roots.insert(i);
    return roots;
}

hw_label_kind root_kind(const Paths& paths, std::uint32_t path) {
    while (paths[path].parent != Paths::kTop) path = paths[path].parent;
    return paths[path].kind;
}

struct Traversed {
    FakeHeap heap;
    Traversal<FakeHeap> traversal{heap};
    std::map<std::uint32_t, Objects> members;  // by path

    explicit Traversed(FakeHeap made) : heap(std::move(made)) {
        traversal.run();
        for (std::size_t i = 0; i < heap.objects.size(); ++i) members[path_of(i)].insert(i);
    }
    std::uint32_t path_of(std::size_t object) const { return traversal.path_of(heap.objects[object].address); }
    std::uint64_t bytes(const Objects& objects) const {
        std::uint64_t sum = 0;
        for (const std::size_t object : objects) sum += heap.objects[object].bytes;
        return sum;
    }
    // By brute force: what nothing holds without these objects.
    std::uint64_t retained(const Objects& objects) const {
        Objects lost;
        const Objects left = reached(heap, all_roots(heap), objects);
        for (std::size_t i = 0; i < heap.objects.size(); ++i)
            if (left.count(i) == 0) lost.insert(i);
        return bytes(lost);
    }
};

}  // namespace

TEST_SUITE_BEGIN("holders");

TEST_CASE("a set of objects has the addresses that were added, numbered in its own order") {
    for_seeds(60, [](Trace& trace) {
        ObjectSet set;
        std::set<std::uintptr_t> model;
        for (std::uint64_t step = trace.below(4000); step-- > 0;) {
            std::uintptr_t address = 0x10000000 + (trace.below(5) << 22) + 16 * trace.below(300);
            if (trace.one_in(40)) address += 8;
            if (trace.one_in(50)) CHECK_FALSE(set.add(address + 4));
            CHECK(set.add(address) == model.insert(address).second);
        }
        set.seal();
        REQUIRE(set.size() == model.size());
        std::vector<bool> is_number(model.size());
        set.each([&](std::uintptr_t address, std::uint32_t number) {
            CHECK(set.number_of(address) == number);
            is_number.at(number) = model.erase(address) == 1;
        });
        CHECK(model.empty());
        CHECK(std::find(is_number.begin(), is_number.end(), false) == is_number.end());
        for (int i = 0; i < 200; ++i) {
            const std::uintptr_t address = 0x10000000 + 8 * trace.below(5 << 19);
            CHECK((set.number_of(address) != ObjectSet::kNone) == set.contains(address));
        }
    });
}

TEST_CASE("every object has a path: a shortest one from a root, or it is held by C code, or garbage") {
    for_seeds(300, [](Trace& trace) {
        const Traversed it(some_heap(trace, 0));  // each object has a type of its own, so that no two share a path
        const Objects roots(it.heap.roots.begin(), it.heap.roots.end()), named = reached(it.heap, roots);
        Objects with_c = roots;
        for (const std::size_t object : it.heap.foreign) with_c.insert(object);
        const Objects held = reached(it.heap, with_c);
        std::map<std::size_t, int> distance;
        std::deque<std::size_t> queue;
        for (const std::size_t root : roots) distance[root] = 2, queue.push_back(root);
        while (!queue.empty()) {
            const std::size_t at = queue.front();
            queue.pop_front();
            for (const std::size_t to : it.heap.objects[at].refers_to)
                if (distance.emplace(to, distance[at] + 1).second) queue.push_back(to);
        }
        for (std::size_t i = 0; i < it.heap.objects.size(); ++i) {
            const Path& path = it.traversal.paths()[it.path_of(i)];
            const hw_label_kind root = root_kind(it.traversal.paths(), it.path_of(i));
            CHECK(path.type == it.heap.objects[i].type);
            CHECK((root == HW_MODULE) == (named.count(i) != 0));
            CHECK((root == HW_GARBAGE) == (held.count(i) == 0));
            if (named.count(i) != 0) CHECK(path.depth == distance.at(i));
        }
    });
}

TEST_CASE("retained sizes are those of brute force where each object has a path of its own") {
    for_seeds(300, [](Trace& trace) {
        const Traversed it(some_heap(trace, 0));
        for (const auto& [path, objects] : it.members) {
            CHECK(it.traversal.paths()[path].objects == objects.size());
            CHECK(it.traversal.paths()[path].retained_bytes == it.retained(objects));
        }
    });
}

TEST_CASE("with common types, figures add up and no retained size is too large") {
    for_seeds(300, [](Trace& trace) {
        const Traversed it(some_heap(trace, 1 + trace.below(4)));
        std::map<std::uint32_t, std::uint64_t> held;
        std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> wanted;
        it.traversal.each_holding([&](const Holding& part) { held[part.path] += part.bytes; });
        for (const auto& [path, objects] : it.members) {
            const Path& found = it.traversal.paths()[path];
            CHECK(found.objects == objects.size());
            CHECK(found.bytes == it.bytes(objects));
            CHECK(held[path] == found.bytes);
            CHECK(found.retained_bytes <= it.retained(objects));
            CHECK(found.retained_bytes >= found.bytes);
            for (const std::size_t object : objects)
                ++wanted[{path, static_cast<std::uint32_t>(it.heap.objects[object].bytes % 5)}];
        }
        it.traversal.each_holding(
            [&](const Holding& part) { CHECK(wanted[{part.path, part.account}] == part.blocks); });
    });
}

TEST_CASE("a linked list of any length has one path, and more objects than the queue holds are all found") {
    FakeHeap heap;
    const auto add = [&](std::uint64_t type, std::uintptr_t address) {
        heap.places[address] = heap.objects.size();
        heap.objects.push_back({address, {}, 1, as_type(type), 10, true, false});
    };
    constexpr std::size_t kLinks = 5000, kItems = 300'000;
    std::uintptr_t address = 0x5500'0000'0000;
    for (std::size_t i = 0; i < kLinks + 1 + kItems; ++i) add(i == kLinks ? 1 : i < kLinks ? 0 : 2, address += 32);
    heap.roots = {0, kLinks};
    for (std::size_t i = 0; i + 1 < kLinks; ++i) heap.objects[i].refers_to = {i + 1};
    for (std::size_t i = 0; i < kItems; ++i) {
        heap.objects[kLinks].refers_to.push_back(kLinks + 1 + i);
        heap.objects[kLinks + 1 + i].refers_to = {kLinks + 1 + i};  // a container
        heap.objects[kLinks + 1 + i].references = 2;
    }
    const Traversed it(std::move(heap));

    CHECK(it.traversal.paths().size() <= 7);
    CHECK(it.traversal.paths()[it.path_of(kLinks - 1)].objects == kLinks - 1);
    CHECK(it.traversal.paths()[it.path_of(0)].retained_bytes == 10 * kLinks);
    CHECK(it.traversal.paths()[it.path_of(kLinks + 1)].objects == kItems);
    CHECK(it.traversal.paths()[it.path_of(kLinks)].retained_bytes == 10 * (kItems + 1));
}

TEST_CASE("an object that only the words of another lead to is held by that one, and any other word by nobody") {
    FakeHeap heap;
    const std::uintptr_t first = 0x7f0000000000;
    for (std::size_t i = 0; i < 4; ++i) {
        heap.places[first + 64 * i] = i;
        heap.objects.push_back({first + 64 * i, {}, 1, as_type(i), 100, true, false});
    }
    heap.roots = {0, 3};
    heap.objects[1].refers_to = {2};
    heap.kept_in_words = {{first, first + 64}, {first + 64, first + 64 * 3}, {first + 64 * 3, 0x12345678}};
    Traversal<FakeHeap> traversal(heap);
    traversal.run();
    const std::uint32_t holder = traversal.path_of(first), hidden = traversal.path_of(first + 64);
    CHECK(traversal.paths()[hidden].parent == holder);
    CHECK(traversal.paths()[traversal.path_of(first + 128)].parent == hidden);
    CHECK(traversal.paths()[holder].retained_bytes == 300);
    CHECK(traversal.paths()[traversal.path_of(first + 64 * 3)].retained_bytes == 100);
}

TEST_CASE("immortal objects are nobody's") {
    FakeHeap heap;
    for (std::size_t i = 0; i < 3; ++i) {
        const std::uintptr_t address = 0x6000 + 64 * i;
        heap.places[address] = i;
        heap.objects.push_back({address, {}, 1, as_type(i), 100, i != 2, i == 2});
    }
    heap.objects[0].refers_to = {1, 2};
    heap.objects[1].refers_to = {2};
    heap.roots = {0};
    const Traversed it(std::move(heap));

    CHECK(root_kind(it.traversal.paths(), it.path_of(2)) == HW_INTERPRETER);
    CHECK(it.traversal.paths()[it.path_of(0)].retained_bytes == 200);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
