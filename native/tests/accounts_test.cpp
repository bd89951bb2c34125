#include "accounting/accounts.h"

#include <vector>

#include "accounts_model.h"
#include "support.h"

namespace hiwater::tests {

using capture::Kind;
using capture::Table;

namespace {

// The accounts, the simple model, and a reader of the file. After every event all three must agree.
struct Triplet : AccountsInFile {
    AccountsModel model;
    std::uint64_t now = 0;

    struct Taken {
        std::uint32_t id = 0;
        std::int64_t bytes = 0;
    };
    std::vector<Taken> blocks, taken;  // live blocks; blocks that a call took and may put back

    std::uint32_t some_account(Trace& trace) {
        if (model.live.size() > 1 && !trace.one_in(12))
            return static_cast<std::uint32_t>(1 + trace.below(model.live.size() - 1));
        const auto node = static_cast<std::uint32_t>(1 + trace.below(9));
        const auto kind = static_cast<Kind>(trace.below(capture::kKinds));
        const std::uint32_t id = accounts.account(node, kind);
        REQUIRE(accounts.account(node, kind) == id);
        if (id == model.live.size()) model.add_account(kind);
        REQUIRE(model.kinds.at(id) == kind);
        return id;
    }
    Taken remove_from(std::vector<Taken>& from, Trace& trace) {
        const std::size_t at = trace.below(from.size());
        const Taken gone = from[at];
        from[at] = from.back();
        from.pop_back();
        return gone;
    }

    // A block of the heap goes the way made for it half of the time.
    static bool goes_as_block(Trace& trace, Kind kind) {
        return Accounts::counted(static_cast<std::uint32_t>(kind)) && trace.one_in(2);
    }

    void event(Trace& trace) {
        const std::uint64_t what = trace.below(100);
        if (trace.one_in(200)) REQUIRE(accounts.begin_interval() == model.live.size());
        file.header().heartbeat_ns = now += trace.below(1000);
        if (what < 3) {
            model.close_slice();
            accounts.close_slice(now);
        } else if (what < 50 || blocks.empty()) {
            const std::int64_t bytes =
                static_cast<std::int64_t>(trace.one_in(20) ? trace.word() % (1ULL << 40) : trace.below(5000));
            blocks.push_back({some_account(trace), bytes});
            const std::uint32_t id = blocks.back().id;
            goes_as_block(trace, model.kinds.at(id)) ? accounts.credit_block(id, bytes) : accounts.credit(id, bytes);
            model.credit(id, bytes);
        } else if (what < 60 && !taken.empty()) {
            const Taken back = remove_from(taken, trace);
            blocks.push_back(back);
            accounts.restore(back.id, back.bytes);
            model.change(back.id, back.bytes, 1);
        } else if (what < 70) {
            shrink(trace);
        } else {
            const Taken gone = remove_from(blocks, trace);
            goes_as_block(trace, model.kinds.at(gone.id)) ? accounts.debit_block(gone.id, gone.bytes)
                                                          : accounts.debit(gone.id, gone.bytes);
            model.change(gone.id, -gone.bytes, -1);
            if (trace.one_in(5)) taken.push_back(gone);
        }
    }
    // Part of a mapping goes: from its end (it stays one block) or from its middle (it becomes two).
    void shrink(Trace& trace) {
        Taken& from = blocks[trace.below(blocks.size())];
        if (from.bytes < 3) return;
        const auto gone = static_cast<std::int64_t>(1 + trace.below(static_cast<std::uint64_t>(from.bytes - 2)));
        const std::int64_t rest = from.bytes - gone;
        const bool in_two = rest >= 2 && trace.one_in(2);
        accounts.debit(from.id, gone, in_two ? -1 : 0);
        model.change(from.id, -gone, in_two ? 1 : 0);
        from.bytes = in_two ? 1 : rest;
        if (in_two) blocks.push_back({blocks[&from - blocks.data()].id, rest - 1});
    }

    void compare(const FileView& view) const {
        const capture::Header& h = view.header();
        AccountsInFile::compare(view, model);
        if (h.slice_peak_bytes != model.open.peak.bytes || h.slice_peak_blocks != model.open.peak.blocks)
            FAIL("the slice's peak is ", h.slice_peak_bytes);
        if (view.peak() != model.peak().peak)
            FAIL("the peak is ", view.peak().bytes, ", not ", model.peak().peak.bytes);
        if (accounts.peak_bytes() != view.peak().bytes || accounts.peak_blocks() != view.peak().blocks)
            FAIL("two peaks");
        if (view.count(Table::accounts) != model.live.size()) FAIL(view.count(Table::accounts), " accounts");
        for (std::uint32_t id = 1; id < model.live.size(); ++id)
            if (accounts.at_slice_peak(id).bytes != view.at_slice_peak(id).bytes ||
                accounts.at_peak(id).bytes != view.at_peak(id).bytes)
                FAIL("two figures of account ", id);
    }
    // Slices list changes only: replayed in order they give all of each slice's peak.
    void compare_slices(const FileView& view) const {
        REQUIRE(view.count(Table::slices) == model.closed.size());
        std::vector<FileView::Figures> now_held(model.live.size(), {0, 0});
        std::uint64_t next_entry = 0, last_end = 0;
        for (std::uint64_t i = 0; i < model.closed.size(); ++i) {
            const auto& slice = view.record<capture::SliceRecord>(Table::slices, i);
            REQUIRE(slice.first_entry == next_entry);
            REQUIRE(slice.start_ns == last_end);
            REQUIRE(slice.unlisted_bytes == 0);
            next_entry += slice.entry_count;
            last_end = slice.end_ns;
            for (std::uint64_t e = slice.first_entry; e < next_entry; ++e) {
                const auto& entry = view.record<capture::SliceEntryRecord>(Table::slice_entries, e);
                now_held[entry.account] = {entry.bytes, entry.blocks};
            }
            REQUIRE(FileView::Figures{slice.peak_bytes, slice.peak_blocks} == model.closed[i].peak);
            for (std::uint32_t id = 1; id < now_held.size(); ++id) {
                const std::int64_t wanted =
                    id < model.closed[i].at_slice_peak.size() ? model.closed[i].at_slice_peak[id].bytes : 0;
                if (now_held[id].bytes != wanted)
                    FAIL("slice ", i, ": account ", id, " held ", now_held[id].bytes, ", not ", wanted);
            }
        }
    }
};

}  // namespace

TEST_SUITE_BEGIN("accounts");

TEST_CASE("after every event the accounts, the simple model and a reader of the file agree") {
    for_seeds(30, [](Trace& trace) {
        Triplet t;
        for (int step = 0; step < 800; ++step) {
            CAPTURE(step);
            t.event(trace);
            // The file grows: a reader that mapped it before would not see what is new.
            if (step % 200 == 0) CHECK(FileView(t.path).is_whole());
            t.compare(FileView(t.path));
        }
        t.compare_slices(FileView(t.path));
    });
}

TEST_CASE("the first of two equal peaks is the peak") {
    Triplet t;
    const std::uint32_t a = t.accounts.account(1, Kind::native), b = t.accounts.account(2, Kind::native);
    t.accounts.credit(a, 100);
    t.accounts.debit(a, 100);
    t.accounts.close_slice(10);
    t.accounts.close_slice(20);  // the peak of this one is 0
    t.accounts.credit(b, 100);
    CHECK(t.accounts.peak_bytes() == 100);
    CHECK(t.accounts.at_peak(a).bytes == 100);
    CHECK(t.accounts.at_peak(b).bytes == 0);
    t.accounts.close_slice(30);
    CHECK(t.accounts.at_peak(a).bytes == 100);
    CHECK(t.accounts.at_peak(b).bytes == 0);
}

TEST_CASE("a fall is seen from heights that are nearly the peak") {
    Triplet t;
    const std::uint32_t a = t.accounts.account(1, Kind::native);
    t.accounts.credit(a, 1600);
    CHECK_FALSE(t.accounts.has_fallen_from_height());
    t.accounts.debit(a, 99);
    CHECK_FALSE(t.accounts.has_fallen_from_height());
    t.accounts.debit(a, 1);
    CHECK(t.accounts.has_fallen_from_height());
    t.accounts.close_slice(10);
    CHECK_FALSE(t.accounts.has_fallen_from_height());  // it is as high as this slice was yet
    t.accounts.debit(a, 100);
    CHECK(t.accounts.has_fallen_from_height());  // 1500 was the peak of this slice
    t.accounts.close_slice(20);
    t.accounts.debit(a, 1000);
    CHECK_FALSE(t.accounts.has_fallen_from_height());  // 1400 was not nearly the peak
}

TEST_CASE("temporaries are counted by account") {
    Triplet t;
    const std::uint32_t a = t.accounts.account(1, Kind::native);
    t.accounts.count_temporary(a);
    t.accounts.count_temporary(a);
    CHECK(FileView(t.path).record<capture::AccountPeakRecord>(Table::account_peaks, a).temporaries == 2);
}

TEST_CASE("the consistency check sees a figure that was changed") {
    Triplet t;
    const std::uint32_t a = t.accounts.account(1, Kind::native);
    t.accounts.credit(a, 100);
    CHECK(t.accounts.is_consistent());
    const_cast<capture::AccountRecord&>(t.accounts.record(a)).live_bytes += 1;
    CHECK_FALSE(t.accounts.is_consistent());
}

TEST_SUITE_END();

}  // namespace hiwater::tests
