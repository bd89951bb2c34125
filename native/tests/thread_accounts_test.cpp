#include "accounting/thread_accounts.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "accounts_model.h"
#include "accounting/accounts.h"
#include "heap/live_table.h"
#include "support.h"

namespace hiwater::tests {

using capture::Kind;

namespace {

// Accounts with thread-local ones that are merged from time to time, compared with a simple model that gets every event
// at once.
struct SharedAccounts : AccountsInFile {
    struct Block {
        std::uint32_t account;
        std::int64_t bytes;
    };
    static constexpr std::size_t kThreads = 3;

    AccountsModel model;
    ThreadAccounts threads[kThreads];
    std::atomic<std::int64_t> room{0};
    std::vector<Block> blocks;
    bool is_open = false, is_in_order = false;
    std::uint64_t now = 0, local = 0, listed = 0, common = 0;

    explicit SharedAccounts(std::uint32_t count) {
        for (std::uint32_t id = 1; id <= count; ++id) {
            const Kind kind = id % 2 != 0 ? Kind::native : Kind::python;
            REQUIRE(accounts.account(id, kind) == id);
            model.add_account(kind);
        }
    }
    void open(bool in_order) {
        room.store(accounts.room_below_peak());
        is_open = true;
        is_in_order = in_order;
    }
    void close() {
        const auto each_thread = [this](const auto& visit) {
            for (const ThreadAccounts& thread : threads) visit(thread);
        };
        if (is_in_order) {
            const std::int64_t peak = accounts.peak_bytes();
            if (const bool has_moved = accounts.merge_in_order(each_thread); accounts.peak_bytes() != peak)
                CHECK(has_moved);
        } else {
            accounts.merge(each_thread);
        }
        for (ThreadAccounts& thread : threads) thread.clear();
        is_open = is_in_order = false;
    }
    // Whether the event is one of those in order.
    bool list(ThreadAccounts& thread, std::uint32_t account, std::int64_t bytes) {
        if (!is_in_order || !thread.may_list(static_cast<std::uint64_t>(bytes))) return false;
        thread.list(++now, account, static_cast<std::uint64_t>(bytes));
        ++listed;
        return true;
    }
    void allocate(ThreadAccounts& thread, std::uint32_t account, std::int64_t bytes) {
        blocks.push_back({account, bytes});
        model.credit(account, bytes);
        if (list(thread, account, bytes)) return;
        ThreadAccounts::Entry* const entry = is_open ? thread.entry_of(account) : nullptr;
        if (entry != nullptr && thread.may_grow(bytes, room)) {
            ++local;
            return thread.add(*entry, bytes);
        }
        close();
        ++common;
        accounts.credit_block(account, bytes);
    }
    void free(ThreadAccounts& thread, std::size_t at) {
        const Block gone = blocks[at];
        blocks[at] = blocks.back();
        blocks.pop_back();
        model.change(gone.account, -gone.bytes, -1);
        if (list(thread, gone.account | ThreadAccounts::kFreed, gone.bytes)) return;
        if (ThreadAccounts::Entry* const entry = is_open ? thread.entry_of(gone.account) : nullptr) {
            ++local;
            return thread.take(*entry, gone.bytes);
        }
        close();
        ++common;
        accounts.debit_block(gone.account, gone.bytes);
    }
    void compare() const {
        // Merged or not: no event that was counted may have made a peak that the accounts do not know of.
        if (!is_in_order && accounts.peak_bytes() != model.peak().peak.bytes)
            FAIL("the peak is ", accounts.peak_bytes(), ", not ", model.peak().peak.bytes);
        if (!is_open) AccountsInFile::compare(FileView(path), model);
    }
};

}  // namespace

TEST_SUITE_BEGIN("thread-local accounts");

TEST_CASE("merged thread-local accounts equal common accounts, and so does the peak after every event") {
    std::uint64_t local = 0, listed = 0, common = 0;
    for_seeds(40, [&](Trace& trace) {
        const auto count = static_cast<std::uint32_t>(trace.one_in(2) ? 5 : 300);
        SharedAccounts s(count);
        for (int step = 0; step < 2000; ++step) {
            CAPTURE(step);
            ThreadAccounts& thread = s.threads[trace.below(SharedAccounts::kThreads)];
            const std::uint64_t what = trace.below(100);
            if (what < 2) {
                s.close();
                s.model.close_slice();
                s.accounts.close_slice(++s.now);
            } else if (what < 5) {
                s.close();
            } else if (what < 12 && !s.is_open) {
                s.open(trace.one_in(2));
            } else if (s.blocks.empty() || what < (s.blocks.size() < 60 ? 70u : 50u)) {
                s.allocate(thread, static_cast<std::uint32_t>(1 + trace.below(count)),
                           static_cast<std::int64_t>(trace.below(trace.one_in(9) ? 5000 : 100)));
            } else {
                s.free(thread, trace.below(s.blocks.size()));
            }
            s.compare();
        }
        s.close();
        s.compare();
        local += s.local;
        listed += s.listed;
        common += s.common;
    });
    CHECK(local > 1000);
    CHECK(listed > 1000);
    CHECK(common > 1000);
}

TEST_CASE("threads never take more than the allowance") {
    std::atomic<std::int64_t> room{10'000};
    ThreadAccounts threads[2];
    std::int64_t taken = 0;
    Trace trace(1);
    for (int i = 0; i < 1000; ++i) {
        ThreadAccounts& thread = threads[trace.below(2)];
        const auto bytes = static_cast<std::int64_t>(trace.below(300));
        if (!thread.may_grow(bytes, room)) continue;
        thread.add(*thread.entry_of(1), bytes);
        taken += bytes;
        CHECK(taken <= 10'000);
    }
    CHECK(room.load() >= 0);
    CHECK(taken > 9'000);
    CHECK_FALSE(threads[0].may_grow(10'000, room));
    threads[0].take(*threads[0].entry_of(1), 10'000);  // what is freed may be used again
    CHECK(threads[0].may_grow(10'000, room));
}

TEST_CASE("a thread that listed as many events as it may has to wait, and blocks of 4 GiB are not listed") {
    ThreadAccounts thread;
    CHECK_FALSE(thread.may_list(std::uint64_t{1} << 32));
    std::uint64_t count = 0;
    for (; thread.may_list(UINT32_MAX); ++count) thread.list(count, 1, UINT32_MAX);
    CHECK(thread.events() == count);
    CHECK(thread.end() - thread.begin() == static_cast<std::ptrdiff_t>(count));
    CHECK(thread.begin()[count - 1].bytes == UINT32_MAX);
    thread.clear();
    CHECK(thread.events() == 0);
    CHECK(thread.may_list(1));
}

TEST_CASE("an account without a place of its own is left to the common accounts") {
    ThreadAccounts thread;
    std::vector<std::uint32_t> placed;
    for (std::uint32_t id = 1; id < 1000; ++id)
        if (thread.entry_of(id) != nullptr) placed.push_back(id);
    CHECK(placed.size() == 128);
    for (const std::uint32_t id : placed) CHECK(thread.entry_of(id)->account == id);
    thread.clear();
    CHECK(thread.entry_of(999)->account == 999);
    CHECK(thread.entry_of(999)->bytes == 0);
}

TEST_CASE("what is in the way of a block is left to insert()") {
    LiveTable table;
    REQUIRE(table.init());
    constexpr std::uintptr_t kBase = std::uintptr_t{7} << LiveTable::Region::kShift;
    LiveTable::Region* const region = table.room_for(kBase, 1);
    const auto insert = [&](std::uintptr_t at, std::uint64_t bytes) {
        LiveTable::insert(region, kBase + at, bytes, 1, [](const Block&) {});
    };
    const auto insert_shared = [&](std::uintptr_t at, std::uint64_t bytes) {
        return LiveTable::insert_shared(region, kBase + at, bytes, 2);
    };
    CHECK_FALSE(insert_shared(Region::kChunkBytes, 64));  // there are no words
    CHECK(insert_shared(Region::kStretchBytes, 64));      // a new stretch
    insert(64, 64);
    CHECK(insert_shared(0, 64));
    CHECK_FALSE(insert_shared(0, 64));         // a small block there
    CHECK_FALSE(insert_shared(48, 32));        // or where its size goes
    CHECK_FALSE(insert_shared(64, 5000));      // or where a large one begins
    CHECK(insert_shared(4096, 5000));          // a large one needs no stretch in use
    CHECK_FALSE(insert_shared(4096 + 64, 8));  // around it
    CHECK_FALSE(insert_shared(4096 + 64, 900));
    CHECK_FALSE(insert_shared(std::uintptr_t{64} << 10, std::uint64_t{1} << 33));  // its size needs two words
    CHECK(table.is_consistent());
}

TEST_SUITE_END();
TEST_SUITE_BEGIN("threads");

TEST_CASE("threads put blocks of their own into one table, beside each other, and take out each other's") {
    LiveTable table;
    REQUIRE(table.init());
    constexpr std::uintptr_t kBase = std::uintptr_t{5} << LiveTable::Region::kShift, kStep = 2048;
    constexpr std::size_t kThreads = 3, kSlots = 300;
    LiveTable::Region* const region = table.room_for(kBase, 1);
    const auto address_of = [](std::size_t slot) { return kBase + slot * kStep; };
    std::atomic<std::size_t> wrong{0};
    in_threads(kThreads, [&](std::size_t t) {
        Trace trace(t + 1);
        std::vector<std::uint64_t> bytes(kSlots, 0);
        for (int i = 0; i < 30'000; ++i) {
            const std::size_t slot =
                trace.below(kSlots / kThreads) * kThreads + t;  // every third: neighbours are others'
            const std::uintptr_t address = address_of(slot);
            if (bytes[slot] == 0) {
                bytes[slot] = 1 + trace.below(kStep);
                wrong += !LiveTable::insert_shared(region, address, bytes[slot], static_cast<std::uint32_t>(slot + 1));
            } else {
                const LiveTable::Place place = LiveTable::place_of(region, address);
                const Block block = LiveTable::find_block(region, address, place);
                wrong += block.bytes != bytes[slot] || block.account != slot + 1;
                LiveTable::remove_shared(region, address, place);
                bytes[slot] = 0;
            }
        }
        for (std::size_t slot = 0; slot < kSlots; ++slot)
            if (bytes[slot] != 0)
                LiveTable::remove_shared(region, address_of(slot), LiveTable::place_of(region, address_of(slot)));
    });
    CHECK(wrong == 0);
    CHECK(table.is_consistent());
    std::size_t left = 0;
    table.each([&left](std::uintptr_t, const Block&) { ++left; });
    CHECK(left == 0);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
