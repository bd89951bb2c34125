// Walks are compared with what the compiler's own unwinder finds, over frames of every shape that compilers make.
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "backtrace.h"
#include "support.h"
#include "unwind/unwinder.h"

namespace hiwater::tests {

namespace {

using unwind::End;
using unwind::Frames;

const void* g_anchor = nullptr;  // where the loop of a test keeps something
const void* anchor(void*) { return g_anchor; }

struct Walker {
    unwind::Unwinder unwinder;
    Frames frames{};
    Walker() {
        REQUIRE(unwind::prepare());
        frames.forget();
        unwinder.begin({true, {}, {}, 1});
    }
    void walk() { unwinder.walk({anchor, nullptr}, &frames); }
};
Walker* g_walker = nullptr;
volatile int g_sink = 0;
std::uint64_t* leaf_again = nullptr;  // counts walks that needed less than the whole

// Paths of earlier walks. One that stands must lead to the frames that the walk finds. Not under a sanitizer, to which
// much of a stack that is another than before is out of bounds.
struct Known {
    std::uintptr_t address;
    std::vector<std::uintptr_t> frames;
    unwind::Path path;
};
std::vector<Known>* g_known = nullptr;
std::uint64_t g_stood = 0;

[[gnu::noinline]] void walk() {
#if defined(__SANITIZE_ADDRESS__)
    g_walker->walk();
#else
    const auto* const here = static_cast<const std::uintptr_t*>(__builtin_frame_address(0));
    const std::uintptr_t address = here[1], stack_pointer = reinterpret_cast<std::uintptr_t>(here + 2);
    const std::uintptr_t end = g_walker->frames.stack.end();
    std::vector<const Known*> standing;
    for (std::size_t i = 0; g_known != nullptr && i < g_known->size(); ++i) {
        const Known& known = (*g_known)[i];
        if (known.address == address && stack_pointer + known.path.extent() <= end &&
            known.path.stands_at(stack_pointer))
            standing.push_back(&known);
    }
    g_walker->walk();
    if (g_known == nullptr || g_walker->frames.end != End::loop) return;
    Frames& found = g_walker->frames;
    std::vector<std::uintptr_t> frames;
    for (std::uint32_t i = 1; i <= found.count(); ++i) frames.push_back(found.address(i));
    for (const Known* known : standing) CHECK(known->frames == frames);
    g_stood += standing.size();
    ++found.first;  // this function's own
    unwind::Path path;
    if (standing.empty() && g_known->size() < 2000 &&
        g_walker->unwinder.describe(address, stack_pointer, &found, &path))
        g_known->push_back({address, frames, path});
    --found.first;
#endif
}

// The innermost function of every test: walks, and compares all frames.
[[gnu::noinline]] void leaf() {
    const std::vector<std::uintptr_t> expected = backtrace();
    walk();
    const Frames& found = g_walker->frames;
    // The first two frames are of walk() and of this function, which stands at another call.
    REQUIRE(found.count() > 1);
    REQUIRE(expected.size() + 1 >= found.count());
    for (std::uint32_t i = 2; i < found.count(); ++i) REQUIRE(found.address(i) == expected[i - 1]);
    if (g_anchor == nullptr && expected.size() <= Frames::kMost) CHECK(found.end == End::root);
    if (g_anchor != nullptr) CHECK(found.end == End::loop);
    if (leaf_again != nullptr && found.same_from != Frames::kMost) ++*leaf_again;
    g_sink = g_sink + 1;
}

using Next = void (*)(int);
[[gnu::noinline]] void plain(int left);
[[gnu::noinline]] void fixed_by_size(int left) {
    volatile char* room = static_cast<char*>(alloca(static_cast<std::size_t>(left) * 40 + 8));
    room[0] = 1;
    plain(left - 1);
    g_sink = room[0];
}
[[gnu::noinline]] void realigned(int left) {
    alignas(64) volatile double lanes[8] = {1};
    plain(left - 1);
    g_sink = static_cast<int>(lanes[0]);
}
[[gnu::noinline]] void realigned_by_size(int left) {
    alignas(128) volatile double lanes[16] = {1};
    volatile char* room = static_cast<char*>(alloca(static_cast<std::size_t>(left) * 24 + 8));
    room[0] = 1;
    plain(left - 1);
    g_sink = static_cast<int>(lanes[0]) + room[0];
}
[[gnu::noinline]] void many_arguments(int a, int b, int c, int d, int e, int f, int g, int h, int left) {
    plain(left - 1);
    g_sink = a + b + c + d + e + f + g + h;
}
[[gnu::noinline]] void catching(int left) {
    const auto kept = std::make_unique<int>(left);
    try {
        plain(left - 1);
        if (left % 2 == 0) throw std::runtime_error("even");
    } catch (const std::runtime_error&) {
        leaf();
    }
    g_sink = *kept;
}
[[gnu::noinline]] void jumping(int left) {
    jmp_buf back;
    if (setjmp(back) == 0) {
        plain(left - 1);
        longjmp(back, 1);
    }
    leaf();
}
[[gnu::noinline]] void plain(int left) {
    if (left <= 0) return leaf();
    switch (left % 6) {
        case 0:
            fixed_by_size(left);
            break;
        case 1:
            realigned(left);
            break;
        case 2:
            realigned_by_size(left);
            break;
        case 3:
            many_arguments(1, 2, 3, 4, 5, 6, 7, 8, left);
            break;
        case 4:
            catching(left);
            break;
        default:
            jumping(left);
    }
    g_sink = g_sink + left;
}

// Byte by byte, as the sanitizer finds its own room between constants that lie in front of the tables.
[[gnu::no_sanitize("address")]] void copy_bytes(const unwind::Bytes& from, std::uint8_t* to) {
    for (const volatile std::uint8_t* at = from.start; at != from.end; ++at) *to++ = *at;
}

}  // namespace

TEST_SUITE_BEGIN("unwind");

TEST_CASE("every frame is found, whatever it has on its stack") {
    Walker walker;
    g_walker = &walker;
    for (int depth = 0; depth < 20; ++depth) plain(depth);
    CHECK(walker.unwinder.figures().mismatches == 0);
    CHECK(walker.unwinder.figures().unknown == 0);
    CHECK(walker.unwinder.figures().checked == walker.unwinder.figures().walks);
}

TEST_CASE("a thread's stack is walked to its first function") {
    Walker walker;
    g_walker = &walker;
    pthread_t thread;
    REQUIRE(pthread_create(
                &thread, nullptr,
                [](void*) -> void* {
                    plain(7);
                    return nullptr;
                },
                nullptr) == 0);
    pthread_join(thread, nullptr);
    CHECK(walker.unwinder.figures().mismatches == 0);
}

TEST_CASE("a library's unloading makes its rules void") {
    Walker walker;
    g_walker = &walker;
    plain(3);
    const std::size_t before = walker.unwinder.rules();
    unwind::note_unloading();
    leaf();
    CHECK(walker.unwinder.rules() < before);
    CHECK(walker.unwinder.figures().mismatches == 0);
}

// As the interpreter's: it has something in its frame, and calls everything.
[[gnu::noinline]] void loop(Trace& trace, int depth) {
    volatile int kept = 0;
    const void* const outer = std::exchange(g_anchor, const_cast<const int*>(&kept));
    for (int i = 0; i < 100; ++i) {
        plain(static_cast<int>(trace.below(14)));
        if (depth > 0 && trace.one_in(20)) loop(trace, depth - 1);
        kept = i;
    }
    g_anchor = outer;
}

unwind::Range own_code(unwind::Unwinder& unwinder) {
    const unwind::Module* const program = unwinder.module_of(reinterpret_cast<std::uintptr_t>(&loop));
    REQUIRE(program != nullptr);
    return {program->start, program->end};
}

TEST_CASE("what stays of a stack is not walked again, and is right") {
    Walker walker;
    walker.unwinder.begin({true, own_code(walker.unwinder), {}, 1});
    g_walker = &walker;
    std::uint64_t joined = 0;
    std::vector<Known> known;
    g_known = &known;
    g_stood = 0;
    for_seeds(4, [&](Trace& trace) {
        loop(trace, 2);
        leaf_again = &joined;
        loop(trace, 2);
        leaf_again = nullptr;
    });
    g_known = nullptr;
    CHECK(joined > 1000);
#if !defined(__SANITIZE_ADDRESS__)
    CHECK(known.size() > 50);
    CHECK(g_stood > 1000);
#endif
    CHECK(walker.unwinder.figures().mismatches == 0);
}

// What a frame of another size leaves behind: its saved frame pointer and return address, where they were.
struct Left {
    volatile std::uintptr_t* at;
    std::uintptr_t frame_pointer, return_address;
};
Left g_left{};
bool g_walks = false, g_walks_from_caller = false;
std::uintptr_t g_inner_at = 0;

[[gnu::noinline]] void inner() {
    const auto* const here = static_cast<const std::uintptr_t*>(__builtin_frame_address(0));
    g_inner_at = reinterpret_cast<std::uintptr_t>(here);
    if (g_walks && g_walks_from_caller)  // as hooks do: the frame pointer is from a register, not from a word
        g_walker->unwinder.walk_from(
            {here[1], reinterpret_cast<std::uintptr_t>(here + 2), here[0], nullptr, nullptr, 0}, {anchor, nullptr},
            &g_walker->frames);
    else if (g_walks)
        leaf();
    g_sink = g_sink + 1;
}
[[gnu::noinline, gnu::no_sanitize("address", "undefined")]] void of_any_size(std::size_t bytes, bool is_larger) {
    volatile char* const room = static_cast<char*>(alloca(bytes));
    room[0] = 1;
    auto* const here = static_cast<volatile std::uintptr_t*>(__builtin_frame_address(0));
    if (!is_larger) {
        g_left = {here, here[0], here[1]};
    } else if (g_walks) {  // within the room
        g_left.at[0] = g_left.frame_pointer;
        g_left.at[1] = g_left.return_address;
    }
    inner();
    g_sink = room[0];
}
[[gnu::noinline]] void from_below(std::size_t) {
    volatile char pad[640];
    pad[0] = 1;
    of_any_size(64, false);
    g_sink = pad[0];
}
[[gnu::noinline]] void from_above(std::size_t bytes) {
    of_any_size(bytes, true);
    g_sink = g_sink + 1;
}
[[gnu::noinline]] void planted_loop() {
    volatile int kept = 0;
    const void* const outer = std::exchange(g_anchor, const_cast<const int*>(&kept));
    const auto call = [&](void (*function)(std::size_t), std::size_t bytes) {
        function(bytes);  // the one call of both
        kept = kept + 1;
    };
    void (*volatile const functions[])(std::size_t) = {from_below, from_above};
    std::uintptr_t wanted = 0;
    std::size_t bytes = 64;
    g_walks = false;
    for (int i = 0; i < 200 && (i == 0 || g_inner_at != wanted); ++i) {
        if (i == 1) wanted = g_inner_at;
        if (i > 1) bytes += 16;
        call(functions[i > 0], bytes);
    }
    REQUIRE(g_inner_at == wanted);
    g_walks = true;
    for (int i = 0; i < 6; ++i) call(functions[i % 2], bytes);
    g_anchor = outer;
}

TEST_CASE("an old return address in a larger frame is not taken for one that is in use") {
    Walker walker;
    const unwind::Range range = own_code(walker.unwinder);
    g_walker = &walker;
    for (const bool from_caller : {false, true}) {
        walker.unwinder.begin({true, range, {}, 1});
        walker.frames.forget();
        g_walks_from_caller = from_caller;
        std::vector<Known> known;
        g_known = &known;
        planted_loop();
        g_known = nullptr;
        CHECK(walker.unwinder.figures().walks == 6);
        CHECK(walker.unwinder.figures().mismatches == 0);
    }
}

[[gnu::noinline]] void nested(int left, int walks_at) {
    if (left == walks_at) walk();
    if (left == 0)
        walk();
    else
        nested(left - 1, walks_at);
    g_sink = left;
}
[[gnu::noinline]] void nested_loop(int frames, int walks_at) {
    volatile int kept = 0;
    const void* const outer = std::exchange(g_anchor, const_cast<const int*>(&kept));
    nested(frames, walks_at);
    g_anchor = outer;
}

TEST_CASE("what stays and what is new are not more than the limit together") {
    Walker walker;
    walker.unwinder.begin({true, own_code(walker.unwinder), {}, 1});
    g_walker = &walker;
    constexpr int kMost = Frames::kMost;
    for (const int frames : {kMost - 40, kMost + 40}) {
        nested_loop(frames, 150);
        CHECK(walker.frames.end == (frames < kMost ? End::loop : End::limit));
        CHECK(walker.frames.first <= Frames::kMost);
    }
    CHECK(walker.unwinder.figures().mismatches == 0);
}

[[gnu::noinline]] void called_twice() {
    leaf();
    g_sink = g_sink + 1;
}
[[gnu::noinline]] void two_calls() {
    called_twice();
    called_twice();
    g_sink = g_sink + 1;
}
[[gnu::noinline]] void calling_loop() {
    volatile int kept = 0;
    const void* const outer = std::exchange(g_anchor, const_cast<const int*>(&kept));
    two_calls();
    g_anchor = outer;
}

TEST_CASE("a frame of the same function at the same place may have another caller") {
    Walker walker;
    walker.unwinder.begin({true, own_code(walker.unwinder), {}, 1});
    g_walker = &walker;
    calling_loop();
    CHECK(walker.unwinder.figures().walks == 2);
    CHECK(walker.unwinder.figures().mismatches == 0);
}

TEST_CASE("rules stay where a table of them grows") {
    unwind::RuleTable rules;
    const auto rule_of = [](std::uintptr_t i) {
        return unwind::Rule{static_cast<std::int32_t>(i), -2, unwind::Rule::Cfa::from_rsp, unwind::Rule::Rbp::same, 0};
    };
    for (std::uintptr_t i = 1; i <= 20'000; ++i) rules.put(i * 16, rule_of(i));
    CHECK(rules.size() == 20'000);
    for (std::uintptr_t i = 1; i <= 20'000; ++i) {
        const unwind::Rule* const found = rules.find(i * 16);
        REQUIRE(found != nullptr);
        CHECK(*found == rule_of(i));
    }
    CHECK(rules.find(8) == nullptr);
}

TEST_CASE("a stack deeper than the limit is truncated") {
    Walker walker;
    g_walker = &walker;
    plain(400);
    CHECK(walker.frames.count() <= Frames::kMost);
    CHECK(walker.unwinder.figures().limit > 0);
    CHECK(walker.unwinder.figures().mismatches == 0);
}

// Whatever was read before it: rows of a function are read on from the last one.
TEST_CASE("a rule is the same whichever was asked for before") {
    Walker walker;
    g_walker = &walker;
    plain(12);
    const unwind::Module* const module = walker.unwinder.module_of(walker.frames.address(0));
    REQUIRE(module != nullptr);
    const auto code = reinterpret_cast<std::uintptr_t>(module->code.start);
    const auto bytes = static_cast<std::uint64_t>(module->code.end - module->code.start);
    for_seeds(20, [&](Trace& trace) {
        unwind::RuleReader reader;
        std::uintptr_t address = 0;
        for (int i = 0; i < 500; ++i) {
            address = i % 10 == 0 ? code + trace.below(bytes) : address + trace.below(24) - (trace.one_in(4) ? 30 : 0);
            CHECK(reader.rule_of(module->tables, module->header, module->code, address) ==
                  unwind::RuleReader().rule_of(module->tables, module->header, module->code, address));
        }
    });
}

// A small part here; `make fuzz-unwind` has a million mutants.
TEST_CASE("tables that lie lead nowhere beyond their bytes") {
    const char* const asked = std::getenv("HIWATER_MUTANTS");
    const std::uint64_t mutants_of_seed = 250;
    const std::uint64_t seeds = asked == nullptr ? 40 : std::strtoull(asked, nullptr, 10) / mutants_of_seed;
    Walker walker;
    g_walker = &walker;
    plain(12);
    std::vector<std::uintptr_t> addresses;
    for (std::uint32_t i = 0; i < walker.frames.count(); ++i) addresses.push_back(walker.frames.address(i));
    const unwind::Module* const module = walker.unwinder.module_of(addresses[0]);
    REQUIRE(module != nullptr);
    REQUIRE(module->header != nullptr);
    const std::size_t bytes = static_cast<std::size_t>(module->tables.end - module->tables.start);
    const auto header = static_cast<std::size_t>(module->header - module->tables.start);
    for_seeds(seeds, [&](Trace& trace) {
        // A copy on the heap, which a sanitizer watches the ends of.
        const std::unique_ptr<std::uint8_t[]> copy(new std::uint8_t[bytes]);
        copy_bytes(module->tables, copy.get());
        const unwind::Bytes tables{copy.get(), copy.get() + bytes};
        const auto moved = [&](std::uintptr_t address) {
            return address - reinterpret_cast<std::uintptr_t>(module->tables.start) +
                   reinterpret_cast<std::uintptr_t>(copy.get());
        };
        unwind::RuleReader reader, other;
        for (const std::uintptr_t address : addresses)
            if (walker.unwinder.module_of(address) == module)
                CHECK(reader.rule_of(tables, tables.start + header, {}, moved(address)) ==
                      other.rule_of(module->tables, module->header, {}, address));
        for (std::uint64_t mutant = 0; mutant < mutants_of_seed; ++mutant) {
            if (mutant % 4 == 0) copy_bytes(module->tables, copy.get());  // many changes leave no table to be read
            const std::size_t from = trace.one_in(4) ? header : header + trace.below(bytes - header);
            for (std::uint64_t i = trace.below(12) + 1; i-- > 0;)
                copy[from + trace.below(std::min<std::size_t>(bytes - from, 4096))] =
                    static_cast<std::uint8_t>(trace.word());
            reader.forget();
            for (const std::uintptr_t address : addresses)
                reader.rule_of(tables, tables.start + header, tables, moved(address));
        }
    });
}

TEST_SUITE_END();

}  // namespace hiwater::tests
