#include "base/pages.h"

#if defined(__linux__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include <cerrno>
#include <cstddef>
#include <iterator>
#include <set>
#include <vector>

#include "base/own_pages.h"
#include "base/page_stock.h"
#include "session/switches.h"
#include "support.h"

namespace hiwater::tests {

namespace {

std::size_t count_own_ranges() {
    std::size_t count = 0;
    own_ranges.each([&](const OwnRanges::Range&) { ++count; });
    return count;
}

}  // namespace

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
        if (ours[i].bytes[0] != static_cast<char>(i) || ours[i].bytes[23] != static_cast<char>(i >> 8))
            FAIL("element ", i);
    CHECK(ours.capacity_bytes() % kPage == 0);
    CHECK(ours.capacity_bytes() >= 3000 * sizeof(Odd));
}

TEST_CASE("what events read does not begin a page, and mostly each has another line of its page") {
    const auto line_of = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % kPage / kLine; };
    PageVector<std::uint64_t> vectors[20];
    std::set<std::size_t> lines;
    for (auto& vector : vectors) {
        vector.push_back(1);
        const std::size_t line = line_of(vector.data());
        CHECK(line != 0);
        CHECK(reinterpret_cast<std::uintptr_t>(vector.data()) % kLine == 0);
        lines.insert(line);
        vector.resize(5000);  // the kernel may move it
        CHECK(line_of(vector.data()) == line);
    }
    CHECK(lines.size() >= 5);
    for (const void* owner : {static_cast<void*>(&vectors[0]), static_cast<void*>(nullptr)}) {
        const auto count = count_own_ranges();
        char* const at = static_cast<char*>(map_apart(kPage, owner));
        CHECK(line_of(at) != 0);
        at[kPage - 1] = 1;
        CHECK(count_own_ranges() == count + 1);
    }
    CHECK(line_of(&g_switches.mode) != 0);
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

TEST_CASE("a stock's pieces are zero, apart from each other, and in few mappings") {
    PageStock stock(3 * kPage);
    const std::size_t before = count_own_ranges();
    const auto own_bytes = [] { return OwnPagesCount().read(false).bytes; };
    const std::int64_t bytes_before = own_bytes();
    std::set<std::uintptr_t> pieces;
    for (int i = 0; i < 2000; ++i) {
        auto* const piece = static_cast<unsigned char*>(stock.take());
        REQUIRE(piece != nullptr);
        CHECK(piece[0] == 0);
        CHECK(piece[3 * kPage - 1] == 0);
        piece[0] = piece[3 * kPage - 1] = 1;
        const auto at = reinterpret_cast<std::uintptr_t>(piece);
        const auto next = pieces.insert(at).first;
        CHECK((next == pieces.begin() || *std::prev(next) + 3 * kPage <= at));
        CHECK((std::next(next) == pieces.end() || at + 3 * kPage <= *std::next(next)));
    }
    CHECK(stock.bytes() == 2000 * 3 * kPage);
    CHECK(count_own_ranges() - before < 80);
    std::size_t seen = 0;
    stock.each([&](const void* piece) { seen += pieces.count(reinterpret_cast<std::uintptr_t>(piece)); });
    CHECK(seen == 2000);
    CHECK(own_bytes() >= bytes_before + 2000 * 2 * static_cast<std::int64_t>(kPage));
    stock.give_pages_back();
    CHECK(own_bytes() <= bytes_before + 16 * static_cast<std::int64_t>(kPage));
    for (const std::uintptr_t piece : pieces) CHECK(*reinterpret_cast<unsigned char*>(piece) == 0);
}

TEST_CASE("spare room is given in parts, once, and filled up again") {
    SpareRoom room;
    CHECK_FALSE(room.give(1));
    room.keep();
    const std::size_t whole = room.bytes();
    REQUIRE(whole >= 4 * kPage);
    CHECK(room.give(1));
    CHECK(room.bytes() == whole - kPage);
    CHECK_FALSE(room.give(whole));  // what is not enough is not wasted
    CHECK(room.bytes() == whole - kPage);
    CHECK(room.give(whole - kPage));
    CHECK(room.bytes() == 0);
    CHECK_FALSE(room.give(kPage));
    room.refill();
    CHECK(room.bytes() == whole);
    room.give(kPage);
    room.refill();
    CHECK(room.bytes() == whole);
    room.drop();
    room.refill();
    CHECK(room.bytes() == 0);
    CHECK_FALSE(room.give(kPage));
}

#if defined(__linux__)

namespace {

// As on kernels before 5.14.
bool refuse_to_put_pages() {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, raw::kPopulateWrite, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{std::size(program), program};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace

TEST_CASE("pages are put, and keep what is in them, where the kernel does not do it in one call") {
    constexpr std::size_t kPages = 64;
    constexpr int kNoFilter = 77;
    auto* const at = static_cast<unsigned char*>(map_pages(kPages * kPage));
    REQUIRE(at != nullptr);
    at[3 * kPage] = 7;
    const std::int64_t before = put_pages.least();
    const int ended = in_child([&] {
        if (!refuse_to_put_pages()) return kNoFilter;
        if (raw::madvise(at, kPage, raw::kPopulateWrite) != -1) return 1;
        if (!touch_pages(at, kPages * kPage, (kPages - 1) * kPage)) return 2;
        unsigned char there[kPages];
        if (raw::mincore(at, kPages * kPage, there) != 0) return 3;
        for (const unsigned char page : there)
            if ((page & 1) == 0) return 4;
        if (put_pages.least() - before != static_cast<std::int64_t>((kPages - 1) * kPage)) return 5;
        return at[3 * kPage] == 7 && at[0] == 0 ? 0 : 6;
    });
    if (ended == kNoFilter)
        MESSAGE("no filter of system calls can be installed here");
    else
        CHECK(ended == 0);
    unmap_pages(at, kPages * kPage);
}

#endif

TEST_SUITE_END();

}  // namespace hiwater::tests
