// Who holds how much: one ledger for each (call path, kind, sampled or not), the running total, its highest mark, and the slices of time.
// The rules of the marks stand at the head of capture/format.h. Callers hold the recorder's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "capture/capture_file.h"
#include "base/pages.h"
#include "accounting/share.h"
#include "accounting/thread_heap.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hiwater {

class Accounts {
public:
    struct Figures {
        std::int64_t bytes = 0, blocks = 0;
    };

    void attach(capture::CaptureFile& file) {
        header_ = &file.header();
        folding_ = false;
        fold_ = {};
        hot_.attach(file, capture::Table::ledgers);
        cold_.attach(file, capture::Table::ledger_cold);
        slices_.attach(file, capture::Table::slices);
        entries_.attach(file, capture::Table::slice_entries);
        first_of_node_.reset();
        next_of_ledger_.reset();
        touched_.reset();
        touched_.push_back(0);
        cold_.append({});
        hot_.append({});
        next_of_ledger_.push_back(0);
        header_->generation = 1;
    }

    // The ledger of a call path and kind, opened when it is the first such block. Throws NoRoom, bad_alloc.
    std::uint32_t ledger(std::uint32_t node, capture::Kind kind, bool sampled = false) {
        const auto k = static_cast<std::uint16_t>(kind);
        if (node >= first_of_node_.size()) first_of_node_.resize(node + 1);
        for (std::uint32_t id = first_of_node_[node]; id != 0; id = next_of_ledger_[id])
            if (hot_[id].kind == k && (hot_[id].sampled != 0) == sampled) return id;
        if (hot_.size() / kGroup >= touched_.size()) touched_.push_back(0);
        cold_.append({});
        capture::LedgerRecord& record = hot_.next();  // zeros, as all of a file that was not written yet
        record.node = node;
        record.kind = k;
        record.sampled = sampled ? 1 : 0;
        const auto id = static_cast<std::uint32_t>(hot_.publish());
        next_of_ledger_.push_back(first_of_node_[node]);
        first_of_node_[node] = id;
        return id;
    }

    [[gnu::always_inline]] void credit(std::uint32_t id, std::int64_t bytes, std::int64_t blocks = 1) noexcept {
        change_total(add_allocated(id, bytes, blocks).kind, bytes, blocks);
    }

    // Takes bytes back; `blocks` is 0 where only part of a mapping went, and negative where it was cut in two.
    [[gnu::always_inline]] void debit(std::uint32_t id, std::int64_t bytes, std::int64_t blocks = 1) noexcept {
        change_total(change_live(id, -bytes, -blocks).kind, -bytes, -blocks);
    }

    // The same for one block of the heap, which is every event but a mapping's: such kinds all count, and a total that fell is no mark.
    void credit_block(std::uint32_t id, std::int64_t bytes) noexcept {
        credit_plainly(id, hot_[id].kind, bytes);
        if (folding_) [[unlikely]]
            tell_meters(bytes);
    }
    void debit_block(std::uint32_t id, std::int64_t bytes) noexcept {
        debit_plainly(id, bytes);
        if (folding_) [[unlikely]]
            tell_meters(-bytes);
    }
    // And for one while nobody reads the heap's meters. `kind` is the ledger's.
    [[gnu::always_inline]] void credit_plainly(std::uint32_t id, std::uint32_t kind, std::int64_t bytes) noexcept {
        capture::Header& h = *header_;
        add_allocated(id, bytes, 1);
        h.kind_live_bytes[kind] += bytes;
        const std::int64_t live = add_total(h, bytes, 1);
        if (live > h.mark_bytes) move_mark(h, live);
    }
    [[gnu::always_inline]] void debit_plainly(std::uint32_t id, std::int64_t bytes) noexcept {
        capture::Header& h = *header_;
        h.kind_live_bytes[change_live(id, -bytes, -1).kind] -= bytes;
        add_total(h, -bytes, -1);
    }

    // Puts back what a debit took for a call that then failed: it was never gone, so it is not counted as allocated again.
    void restore(std::uint32_t id, std::int64_t bytes, std::int64_t blocks = 1) noexcept {
        debit(id, -bytes, -blocks);
        if (folding_ && counted(hot_[id].kind)) thread_heap.allocated_bytes -= bytes;
    }

    // After an event that was left in its midst: the totals are the sums of the ledgers again. O(ledgers).
    void add_up() noexcept {
        capture::Header& h = *header_;
        const Sums sums = sums_of_ledgers();
        for (std::uint32_t k = 0; k < capture::kKinds; ++k) h.kind_live_bytes[k] = sums.by_kind[k];
        add_total(h, sums.live.bytes - h.live_bytes, sums.live.blocks - h.live_blocks);
        if (sums.live.bytes > h.mark_bytes || !is_mark(sums.mark)) move_mark(h, sums.live.bytes);
    }

    // How far the total may rise before the mark moves.
    std::int64_t room_below_mark() const noexcept { return header_->mark_bytes - header_->live_bytes; }
    // Takes in what threads booked apart; each_share(visit) has visit(share) for every one of them. What rose comes first: a block may
    // have been made by one thread and freed by another, and no ledger shows fewer bytes than none should the process be killed in between.
    template <typename EachShare>
    void take_in(EachShare each_share) noexcept {
        for (const bool rose : {true, false}) {
            each_share([&](const Share& share) {
                share.each([&](const Share::Entry& entry) {
                    if ((entry.bytes >= 0) == rose) take_in_entry(entry);
                });
            });
        }
    }

    void count_temporary(std::uint32_t id) noexcept { ++cold_[id].temporaries; }

    // Ends the open slice and begins the next. O(ledgers that changed in it or in the one before, and their neighbours).
    void close_slice(std::uint64_t now_ns) {
        capture::Header& h = *header_;
        const capture::EpochRecord& before = epoch();
        const bool best = h.mark_bytes > before.best_bytes;
        if (best) keep_as_peak();
        list_changes(before.slice_start_ns, now_ns);
        capture::EpochRecord& next = header_->epoch[1 - epoch_index()];
        next = before;
        next.slice_start_ns = now_ns;
        if (best) next = {h.mark_bytes, h.mark_blocks, h.mark_ns, now_ns};
        __atomic_store_n(&h.epoch_index, 1 - epoch_index(), __ATOMIC_RELEASE);
        h.mark_blocks = h.live_blocks;
        h.mark_ns = now_ns;
        h.mark_bytes = h.live_bytes;
        order();
        ++h.generation;
        forget_touches(best);
    }

    // The highest total of the slices that began at `start_ns` or later, the open one among them.
    Figures highest_since(std::uint64_t start_ns) {
        const capture::Header& h = *header_;
        Figures highest{h.mark_bytes, h.mark_blocks};
        for (std::uint64_t i = slices_.size(); i-- > 0 && slices_[i].start_ns >= start_ns;)
            if (slices_[i].mark_bytes > highest.bytes) highest = {slices_[i].mark_bytes, slices_[i].mark_blocks};
        return highest;
    }

    // The highest totals since the last fold: for scopes, which raise the peaks of all that are open and start anew.
    struct Fold {
        std::int64_t total_bytes = 0, python_bytes = 0;
    };
    Fold fold() noexcept {
        const Fold highest = fold_;
        folding_ = true;
        fold_ = {header_->live_bytes, header_->kind_live_bytes[static_cast<std::uint32_t>(capture::Kind::python)]};
        return highest;
    }
    void stop_folding() noexcept { folding_ = false; }
    bool is_folding() const noexcept { return folding_; }

    Figures at_mark(std::uint32_t id) const {
        const capture::LedgerRecord& l = hot_[id];
        if (l.generation == header_->generation) return {l.saved_bytes, l.saved_blocks};
        return {l.live_bytes, l.live_blocks};
    }
    Figures at_peak(std::uint32_t id) const {
        if (header_->mark_bytes > epoch().best_bytes) return at_mark(id);
        return {cold_[id].peak_bytes, cold_[id].peak_blocks};
    }
    std::int64_t peak_bytes() const {
        const std::int64_t best = epoch().best_bytes;
        return header_->mark_bytes > best ? header_->mark_bytes : best;
    }
    std::int64_t peak_blocks() const {
        const capture::EpochRecord& before = epoch();
        return header_->mark_bytes > before.best_bytes ? header_->mark_blocks : before.best_blocks;
    }
    // What closed slices come to.
    const capture::EpochRecord& epoch() const { return header_->epoch[epoch_index()]; }
    const capture::LedgerRecord& record(std::uint32_t id) const { return hot_[id]; }
    std::uint32_t size() const { return static_cast<std::uint32_t>(hot_.size()); }
    static bool counted(std::uint32_t kind) { return capture::is_counted(static_cast<capture::Kind>(kind)); }

    void forget_everything() noexcept {
        first_of_node_.reset();
        next_of_ledger_.reset();
        touched_.reset();
    }
    std::size_t own_bytes() const {
        return first_of_node_.capacity_bytes() + next_of_ledger_.capacity_bytes() + touched_.capacity_bytes();
    }

    // O(ledgers). Live, mark and peak are the sums of the ledgers', and nothing is below zero.
    bool is_consistent() const {
        const Sums sums = sums_of_ledgers();
        for (std::uint32_t k = 0; k < capture::kKinds; ++k)
            if (sums.by_kind[k] != header_->kind_live_bytes[k]) return false;
        return sums.are_sound && sums.live.bytes == header_->live_bytes && sums.live.blocks == header_->live_blocks &&
               is_mark(sums.mark) && sums.peak_bytes == peak_bytes() && header_->mark_bytes >= header_->live_bytes;
    }

private:
    struct Sums {
        std::int64_t by_kind[capture::kKinds] = {};
        Figures live, mark;  // of the kinds that count
        std::int64_t peak_bytes = 0;
        bool are_sound = true;  // no ledger is below zero, or of a kind that does not exist
    };
    Sums sums_of_ledgers() const noexcept {
        Sums sums;
        for (std::uint32_t id = 1; id < size(); ++id) {
            const capture::LedgerRecord& l = hot_[id];
            const bool exists = l.kind < capture::kKinds;  // not where somebody else wrote to the file
            if (!exists || l.live_bytes < 0 || l.live_blocks < 0 || (l.live_blocks == 0 && l.live_bytes != 0))
                sums.are_sound = false;
            if (!exists) continue;
            sums.by_kind[l.kind] += l.live_bytes;
            if (!counted(l.kind)) continue;
            sums.live.bytes += l.live_bytes;
            sums.live.blocks += l.live_blocks;
            sums.mark.bytes += at_mark(id).bytes;
            sums.mark.blocks += at_mark(id).blocks;
            sums.peak_bytes += at_peak(id).bytes;
        }
        return sums;
    }
    bool is_mark(const Figures& figures) const noexcept {
        return figures.bytes == header_->mark_bytes && figures.blocks == header_->mark_blocks;
    }

    std::uint32_t epoch_index() const noexcept { return header_->epoch_index & 1; }  // somebody else may have written to the file
    // A kill can fall between any two stores but not inside one: what belongs together is stored at once, the rest in order.
    static void order() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }
    static_assert(offsetof(capture::LedgerRecord, live_bytes) % 16 == 0 && offsetof(capture::LedgerRecord, saved_bytes) % 16 == 0);
#if defined(__SSE2__)
    // Told from the whole record: a compiler may take a pointer to one member to reach no further than that.
    static __m128i* pair_at(capture::LedgerRecord& ledger, std::size_t offset) noexcept {
        return reinterpret_cast<__m128i*>(reinterpret_cast<char*>(&ledger) + offset);
    }
#endif
    static void add_live(capture::LedgerRecord& ledger, std::int64_t bytes, std::int64_t blocks) noexcept {
#if defined(__SSE2__)
        __m128i* pair = pair_at(ledger, offsetof(capture::LedgerRecord, live_bytes));
        _mm_store_si128(pair, _mm_add_epi64(_mm_load_si128(pair), _mm_set_epi64x(blocks, bytes)));
#else
        ledger.live_bytes += bytes;
        ledger.live_blocks += blocks;
#endif
    }
    static void save_live(capture::LedgerRecord& ledger) noexcept {
#if defined(__SSE2__)
        _mm_store_si128(pair_at(ledger, offsetof(capture::LedgerRecord, saved_bytes)),
                        _mm_load_si128(pair_at(ledger, offsetof(capture::LedgerRecord, live_bytes))));
#else
        ledger.saved_bytes = ledger.live_bytes;
        ledger.saved_blocks = ledger.live_blocks;
#endif
    }
    [[gnu::always_inline]] capture::LedgerRecord& change_live(std::uint32_t id, std::int64_t bytes, std::int64_t blocks) noexcept {
        capture::LedgerRecord& ledger = hot_[id];
        save(id, ledger, *header_);
        add_live(ledger, bytes, blocks);
        return ledger;
    }
    [[gnu::always_inline]] capture::LedgerRecord& add_allocated(std::uint32_t id, std::int64_t bytes,
                                                                std::int64_t blocks) noexcept {
        capture::LedgerRecord& ledger = change_live(id, bytes, blocks);
        ledger.total_bytes += static_cast<std::uint64_t>(bytes);
        ledger.total_blocks += static_cast<std::uint64_t>(blocks);
        return ledger;
    }
    // Never above the mark in the end; in between, parts of it may be.
    void take_in_entry(const Share::Entry& entry) noexcept {
        capture::LedgerRecord& ledger = change_live(entry.ledger, entry.bytes, entry.blocks);
        ledger.total_bytes += entry.total_bytes;
        ledger.total_blocks += entry.total_blocks;
        cold_[entry.ledger].temporaries += entry.temporaries;
        header_->kind_live_bytes[ledger.kind] += entry.bytes;
        add_total(*header_, entry.bytes, entry.blocks);
    }
    // Both at once, or each by itself: a compiler that joins stores makes every load of both wait for two of them.
    static std::int64_t add_total(capture::Header& h, std::int64_t bytes, std::int64_t blocks) noexcept {
#if defined(__SSE2__)
        auto* pair = reinterpret_cast<__m128i*>(reinterpret_cast<char*>(&h) + offsetof(capture::Header, live_bytes));
        const __m128i both = _mm_add_epi64(_mm_load_si128(pair), _mm_set_epi64x(blocks, bytes));
        _mm_store_si128(pair, both);
        return _mm_cvtsi128_si64(both);
#else
        const std::int64_t live = h.live_bytes + bytes;
        __atomic_store_n(&h.live_bytes, live, __ATOMIC_RELAXED);
        __atomic_store_n(&h.live_blocks, h.live_blocks + blocks, __ATOMIC_RELAXED);
        return live;
#endif
    }
    static_assert(offsetof(capture::Header, live_bytes) % 16 == 0 &&
                  offsetof(capture::Header, live_blocks) == offsetof(capture::Header, live_bytes) + 8);

    // The first change of a ledger in a slice always comes by here, as each slice begins a generation.
    void save(std::uint32_t id, capture::LedgerRecord& ledger, const capture::Header& h) noexcept {
        if (ledger.generation == h.generation) return;
        touched_[id / kGroup] |= kTouched;
        save_live(ledger);
        order();
        ledger.generation = h.generation;
        order();
    }

    static void move_mark(capture::Header& h, std::int64_t live) noexcept {
        order();
        // A reader takes the ledgers' figures, so the mark itself may lag one event behind them.
        h.mark_bytes = live;
        h.mark_blocks = h.live_blocks;
        h.mark_ns = h.heartbeat_ns;
        order();
        ++h.generation;
    }

    [[gnu::always_inline]] void change_total(std::uint32_t kind, std::int64_t bytes, std::int64_t blocks) noexcept {
        capture::Header& h = *header_;
        h.kind_live_bytes[kind] += bytes;
        if (!counted(kind)) [[unlikely]]
            return;
        const std::int64_t live = add_total(h, bytes, blocks);
        if (folding_) [[unlikely]]
            tell_meters(bytes);
        if (bytes > 0 && live > h.mark_bytes) move_mark(h, live);
    }

    // Somebody reads the heap's meters, or lines: the figures that a mere recording can do without.
    [[gnu::noinline]] void tell_meters(std::int64_t bytes) noexcept {
        thread_heap.change(bytes);
        if (bytes <= 0) return;
        const std::int64_t python = header_->kind_live_bytes[static_cast<std::uint32_t>(capture::Kind::python)];
        if (header_->live_bytes > fold_.total_bytes) fold_.total_bytes = header_->live_bytes;
        if (python > fold_.python_bytes) fold_.python_bytes = python;
    }

    // Calls visit(ledger) for every ledger of the groups that were touched as `when` says.
    template <typename Visit>
    void each_touched(std::uint8_t when, Visit visit) const {
        const std::uint32_t end = size();
        for (std::uint32_t group = 0; group < touched_.size(); ++group) {
            if ((touched_[group] & when) == 0) continue;
            const std::uint32_t first = group * kGroup, behind = first + kGroup < end ? first + kGroup : end;
            for (std::uint32_t id = first == 0 ? 1 : first; id < behind; ++id) visit(id);
        }
    }

    // A slice has ended; `kept` says that its mark became the peak. What was touched in it may have changed after its mark, so it counts as
    // changed in the next one, too, and since that peak.
    void forget_touches(bool kept) noexcept {
        for (std::uint8_t& group : touched_) {
            if (group == 0) continue;
            const bool now = (group & kNow) != 0;
            const bool since_peak = kept ? now : (group & kSincePeak) != 0;
            group = static_cast<std::uint8_t>(kEver | (now ? kBefore : 0) | (since_peak ? kSincePeak : 0));
        }
    }

    void keep_as_peak() noexcept {
        each_touched(kSincePeak, [this](std::uint32_t id) {
            const Figures f = at_mark(id);
            cold_[id].peak_bytes = f.bytes;
            cold_[id].peak_blocks = f.blocks;
        });
    }

    void list_changes(std::uint64_t start_ns, std::uint64_t now_ns) {
        const capture::Header& h = *header_;
        const std::uint64_t first = entries_.size();
        // Slices of a program with very many stacks would fill the disk: past a bound, changes too small to see are left out.
        const std::int64_t tolerance = first > kPlentyOfEntries ? h.mark_bytes / 4096 : 0;
        std::int64_t unlisted = 0;
        // What was left out once must be asked again each time.
        each_touched(first > kPlentyOfEntries ? kEver : kNow | kBefore, [&](std::uint32_t id) {
            const Figures f = at_mark(id);
            const std::int64_t change =
                f.bytes > cold_[id].entered_bytes ? f.bytes - cold_[id].entered_bytes : cold_[id].entered_bytes - f.bytes;
            if (change == 0) return;
            if (change <= tolerance) {
                unlisted = unlisted < change ? change : unlisted;
                return;
            }
            entries_.append({id, static_cast<std::uint32_t>(f.blocks), f.bytes});
            cold_[id].entered_bytes = f.bytes;
        });
        slices_.append({start_ns, now_ns, h.mark_ns, h.mark_bytes, h.mark_blocks, first, entries_.size() - first, unlisted});
    }

    static constexpr std::uint64_t kPlentyOfEntries = 2'000'000;

    capture::Header* header_ = nullptr;
    bool folding_ = false;
    Fold fold_;
    capture::FileTable<capture::LedgerRecord> hot_;
    capture::FileTable<capture::LedgerColdRecord> cold_;
    capture::FileTable<capture::SliceRecord> slices_;
    capture::FileTable<capture::SliceEntryRecord> entries_;
    PageVector<std::uint32_t> first_of_node_, next_of_ledger_;

    // When each group of ledgers was last touched, so that the end of a slice goes over those alone.
    static constexpr std::uint32_t kGroup = 32;
    static constexpr std::uint8_t kNow = 1, kBefore = 2, kSincePeak = 4, kEver = 8, kTouched = kNow | kSincePeak | kEver;
    PageVector<std::uint8_t> touched_;
};

}  // namespace hiwater
