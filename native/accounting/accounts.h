// Accounting: one account of bytes and blocks for each (call path, kind, sampled or not), the running total, its peak,
// and the slices of time. The head of capture/format.h has the rules of the peaks. Callers hold the recorder's lock.
// The file is longer than 400 lines because one invariant holds it together: every function keeps the accounts, the
// totals and the peaks consistent after each single store.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "capture/capture_file.h"
#include "capture/in_pieces.h"
#include "base/pages.h"
#include "base/store_order.h"
#include "accounting/thread_accounts.h"
#include "accounting/thread_heap.h"

namespace hiwater {

class Accounts {
public:
    struct Figures {
        std::int64_t bytes = 0, blocks = 0;
    };

    void attach(capture::CaptureFile& file) {
        header_ = &file.header();
        is_peak_read_.store(false);
        heap_peak_ = {};
        hot_.attach(file, capture::Table::accounts);
        cold_.attach(file, capture::Table::account_peaks);
        slices_.attach(file, capture::Table::slices);
        entries_.attach(file, capture::Table::slice_entries);
        first_of_node_.reset();
        next_of_node_.reset();
        touched_.reset();
        native_.reset();
        first_of_interval_ = 1;
        touched_.push_back(0);
        cold_.append({});
        hot_.append({});
        next_of_node_.push_back(0);
        header_->generation = 1;
    }

    // The account of a call path and kind, opened at its first block in an interval. Throws NoRoom, bad_alloc.
    std::uint32_t account(std::uint32_t node, capture::Kind kind, bool sampled = false) {
        const auto k = static_cast<std::uint16_t>(kind);
        if (node >= first_of_node_.size()) first_of_node_.resize(node + 1);
        for (std::uint32_t id = first_of_node_[node]; id >= first_of_interval_; id = next_of_node_[id])  // newest first
            if (hot_[id].kind == k && (hot_[id].sampled != 0) == sampled) return id;
        if (hot_.size() / kGroup >= touched_.size()) touched_.push_back(0);
        if (kind == capture::Kind::native) note_native(hot_.size());
        cold_.append({});
        capture::AccountRecord& record = hot_.next();  // zeros, as all of a file that was not written yet
        record.node = node;
        record.kind = k;
        record.sampled = sampled ? 1 : 0;
        const auto id = static_cast<std::uint32_t>(hot_.publish());
        next_of_node_.push_back(first_of_node_[node]);
        first_of_node_[node] = id;
        return id;
    }
    // Whether an account is of native blocks. Its record, which may be far from the last one, is not read.
    bool is_native(std::uint32_t id) const noexcept {
        return id / 64 < native_.size() && (native_[id / 64] >> id % 64 & 1) != 0;
    }

    [[gnu::always_inline]] void credit(std::uint32_t id, std::int64_t bytes, std::int64_t blocks = 1) noexcept {
        change_total(add_allocated(id, bytes, blocks).kind, bytes, blocks);
    }

    // Subtracts bytes. `blocks` is 0 where only part of a mapping went, and negative where a mapping was split in two.
    [[gnu::always_inline]] void debit(std::uint32_t id, std::int64_t bytes, std::int64_t blocks = 1) noexcept {
        change_total(change_live(id, -bytes, -blocks).kind, -bytes, -blocks);
    }

    // The same for one block of the heap. Those kinds all count in the total, and a total that falls is no new peak.
    void credit_block(std::uint32_t id, std::int64_t bytes) noexcept {
        credit_fast(id, hot_[id].kind, bytes);
        if (is_peak_read()) [[unlikely]]
            update_meters(bytes, 1);
    }
    void debit_block(std::uint32_t id, std::int64_t bytes) noexcept {
        debit_fast(id, bytes);
        if (is_peak_read()) [[unlikely]]
            update_meters(-bytes, -1);
    }
    // The same while no meter reads the heap's peaks. `kind` is the account's.
    [[gnu::always_inline]] void credit_fast(std::uint32_t id, std::uint32_t kind, std::int64_t bytes) noexcept {
        capture::Header& h = *header_;
        add_allocated(id, bytes, 1);
        h.kind_live_bytes[kind] += bytes;
        const std::int64_t live = add_total(h, bytes, 1);
        if (live > h.slice_peak_bytes) raise_peak(h, live);
    }
    [[gnu::always_inline]] void debit_fast(std::uint32_t id, std::int64_t bytes) noexcept {
        capture::Header& h = *header_;
        h.kind_live_bytes[change_live(id, -bytes, -1).kind] -= bytes;
        add_total(h, -bytes, -1);
    }

    // Whether an account with records in this page of the capture has changed in the open slice or in the one before.
    bool uses_page(capture::Table table, std::uint32_t chunk, std::uint64_t page) const noexcept {
        if (table != capture::Table::accounts && table != capture::Table::account_peaks) return false;
        const std::uint64_t record_bytes =
            table == capture::Table::accounts ? sizeof(capture::AccountRecord) : sizeof(capture::AccountPeakRecord);
        const std::uint64_t groups = kPage / record_bytes / kGroup,
                            first = chunk * (capture::kExtentBytes / record_bytes / kGroup) + page * groups;
        for (std::uint64_t group = first; group < first + groups && group < touched_.size(); ++group)
            if ((touched_[group] & (kNow | kBefore)) != 0) return true;
        return false;
    }

    // Restores what a debit took for a call that then failed. It was never freed, so it is not counted as allocated
    // again.
    void restore(std::uint32_t id, std::int64_t bytes, std::int64_t blocks = 1) noexcept {
        debit(id, -bytes, -blocks);
        if (!is_peak_read() || !counted(hot_[id].kind)) return;
        thread_heap.allocated_bytes -= bytes;
        thread_heap.allocations -= blocks;
        metered_.bytes -= bytes;
        metered_.blocks -= blocks;
    }

    // After an event that was left half done: sets the totals to the sums of the accounts. O(accounts).
    void recompute_totals() noexcept {
        capture::Header& h = *header_;
        const Sums sums = sums_of_accounts();
        for (std::uint32_t k = 0; k < capture::kKinds; ++k) h.kind_live_bytes[k] = sums.by_kind[k];
        add_total(h, sums.live.bytes - h.live_bytes, sums.live.blocks - h.live_blocks);
        if (sums.live.bytes > h.slice_peak_bytes || !is_slice_peak(sums.slice_peak)) raise_peak(h, sums.live.bytes);
    }

    // How far the total may rise before the peak moves.
    std::int64_t room_below_peak() const noexcept { return header_->slice_peak_bytes - header_->live_bytes; }
    // Whether the peak of the slice is nearly that of the recording, and the total is clearly lower now.
    bool has_fallen_from_height() const noexcept {
        const std::int64_t height = header_->slice_peak_bytes;
        return height >= epoch().peak_bytes / 16 * 15 && room_below_peak() >= height / 16;
    }
    // Whether so many bytes more are nearly the peak of the recording or above it, and clearly above the peak of the
    // slice.
    bool is_below_height(std::int64_t bytes) const noexcept {
        const std::int64_t height = header_->live_bytes + bytes;
        return height >= epoch().peak_bytes / 16 * 15 && height - header_->slice_peak_bytes >= height / 16;
    }
    // Merges the accounts of threads that shared the lock; each_thread(visit) calls visit(accounts) for each thread.
    // Increases come first: one thread may have allocated a block that another freed, and no account may be negative if
    // the process is killed in between.
    template <typename EachThread>
    void merge(EachThread each_thread) noexcept {
        for (const bool rose : {true, false}) {
            each_thread([&](const ThreadAccounts& thread) {
                thread.each([&](const ThreadAccounts::Entry& entry) {
                    if ((entry.bytes >= 0) == rose) merge_entry(entry);
                });
            });
        }
    }

    // The same for the events that the threads listed. Returns whether the peak of the slice moved.
    template <typename EachThread>
    bool merge_in_order(EachThread each_thread) noexcept {
        const std::int64_t peak = header_->slice_peak_bytes;
        EventsInOrder events;
        each_thread([&](const ThreadAccounts& thread) { events.add(thread); });
        events.each([this](const ThreadAccounts::Event& event) {
            const std::uint32_t id = event.account & ~(ThreadAccounts::kFreed | ThreadAccounts::kTemporary);
            if ((event.account & ThreadAccounts::kFreed) == 0) return credit_fast(id, hot_[id].kind, event.bytes);
            debit_fast(id, event.bytes);
            if ((event.account & ThreadAccounts::kTemporary) != 0) count_temporary(id);
        });
        return header_->slice_peak_bytes != peak;
    }

    void count_temporary(std::uint32_t id) noexcept { ++cold_[id].temporaries; }

    // From now on, until null is given, whatever goes over the accounts reads them so.
    void read_in_pieces(capture::InPieces* pieces) noexcept { pieces_ = pieces; }

    // Ends the open slice and begins the next. O(accounts that changed in it or in the one before, and their
    // neighbours).
    void close_slice(std::uint64_t now_ns) {
        capture::Header& h = *header_;
        const capture::EpochRecord& before = epoch();
        const bool best = h.slice_peak_bytes > before.peak_bytes;
        if (best) save_as_peak();
        list_changes(before.slice_start_ns, now_ns);
        capture::EpochRecord& next = header_->epoch[1 - epoch_index()];
        next = before;
        next.slice_start_ns = now_ns;
        if (best) next = {h.slice_peak_bytes, h.slice_peak_blocks, h.slice_peak_ns, now_ns};
        __atomic_store_n(&h.epoch_index, 1 - epoch_index(), __ATOMIC_RELEASE);
        order_stores();  // the store before holds back those before it, and none of those that follow
        capture::raise_heartbeat(h, now_ns);
        h.slice_peak_blocks = h.live_blocks;
        h.slice_peak_ns = now_ns;
        h.slice_peak_bytes = h.live_bytes;
        order_stores();
        ++h.generation;
        order_stores();
        forget_touches(best);
    }

    // What is live now becomes a slice of no length, between two slices that are closed at the same time. Returns its
    // number.
    std::uint64_t take_instant_slice(std::uint64_t now_ns) {
        close_slice(now_ns);
        close_slice(now_ns);
        return slices_.size() - 1;
    }
    // From now on blocks go into accounts that are opened after this call, so that their accounts tell when they were
    // allocated. Returns the first of them, or 0 where there are too many accounts. Numbers of accounts that a caller
    // kept are for blocks from before.
    std::uint32_t begin_interval() {
        if (size() > capture::kMostRenewedAccounts) return 0;
        return first_of_interval_ = size();
    }

    // The highest total of the slices that began at `start_ns` or later, the open one among them.
    Figures highest_since(std::uint64_t start_ns) {
        const capture::Header& h = *header_;
        Figures highest{h.slice_peak_bytes, h.slice_peak_blocks};
        for (std::uint64_t i = slices_.size(); i-- > 0 && slices_[i].start_ns >= start_ns;)
            if (slices_[i].peak_bytes > highest.bytes) highest = {slices_[i].peak_bytes, slices_[i].peak_blocks};
        return highest;
    }

    // What was allocated in all.
    Figures total() const {
        Figures sum;
        for (std::uint32_t id = 1; id < size(); ++id) {
            note_read();
            if (!counted(hot_[id].kind)) continue;
            sum.bytes += static_cast<std::int64_t>(hot_[id].total_bytes);
            sum.blocks += static_cast<std::int64_t>(hot_[id].total_blocks);
        }
        return sum;
    }

    // The highest totals since the last call, for scopes, which raise the peaks of all open scopes by it. The next
    // interval begins now.
    struct HeapPeak {
        std::int64_t total_bytes = 0, python_bytes = 0;
    };
    HeapPeak read_and_reset_peak() noexcept {
        const HeapPeak highest = heap_peak_;
        is_peak_read_.store(true);
        heap_peak_ = {header_->live_bytes, header_->kind_live_bytes[static_cast<std::uint32_t>(capture::Kind::python)]};
        return highest;
    }
    void stop_peak_reading() noexcept { is_peak_read_.store(false); }
    // What was allocated while the peaks were read, in this recording and those before it. Readers take differences.
    Figures metered() const noexcept { return metered_; }
    bool is_peak_read() const noexcept { return is_peak_read_.load(std::memory_order_relaxed); }

    Figures at_slice_peak(std::uint32_t id) const {
        const capture::AccountRecord& account = hot_[id];
        if (account.generation == header_->generation) return {account.saved_bytes, account.saved_blocks};
        return {account.live_bytes, account.live_blocks};
    }
    Figures at_peak(std::uint32_t id) const {
        if (header_->slice_peak_bytes > epoch().peak_bytes) return at_slice_peak(id);
        return {cold_[id].peak_bytes, cold_[id].peak_blocks};
    }
    std::int64_t peak_bytes() const {
        const std::int64_t best = epoch().peak_bytes;
        return header_->slice_peak_bytes > best ? header_->slice_peak_bytes : best;
    }
    std::int64_t peak_blocks() const {
        const capture::EpochRecord& before = epoch();
        return header_->slice_peak_bytes > before.peak_bytes ? header_->slice_peak_blocks : before.peak_blocks;
    }
    // The peak of all closed slices.
    const capture::EpochRecord& epoch() const { return header_->epoch[epoch_index()]; }
    const capture::AccountRecord& record(std::uint32_t id) const { return hot_[id]; }
    std::uint32_t size() const { return static_cast<std::uint32_t>(hot_.size()); }
    static bool counted(std::uint32_t kind) { return capture::is_counted(static_cast<capture::Kind>(kind)); }

    // What is needed to find accounts: afterwards they can only be read.
    void forget_everything() noexcept {
        first_of_node_.reset();
        next_of_node_.reset();
        touched_.reset();
        native_.reset();
    }
    std::size_t own_bytes() const {
        return first_of_node_.capacity_bytes() + next_of_node_.capacity_bytes() + touched_.capacity_bytes() +
               native_.capacity_bytes();
    }

    // O(accounts). Live bytes and both peaks are the sums of the accounts', and nothing is below zero.
    bool is_consistent() const {
        const Sums sums = sums_of_accounts();
        for (std::uint32_t k = 0; k < capture::kKinds; ++k)
            if (sums.by_kind[k] != header_->kind_live_bytes[k]) return false;
        return sums.are_sound && sums.live.bytes == header_->live_bytes && sums.live.blocks == header_->live_blocks &&
               is_slice_peak(sums.slice_peak) && sums.peak_bytes == peak_bytes() &&
               header_->slice_peak_bytes >= header_->live_bytes;
    }

private:
    void note_native(std::uint64_t id) {
        if (id / 64 >= native_.size()) native_.resize(id / 64 + 1);
        native_[id / 64] |= std::uint64_t{1} << id % 64;
    }
    void note_read() const noexcept {
        if (pieces_ != nullptr) [[unlikely]]
            pieces_->next();
    }
    struct Sums {
        std::int64_t by_kind[capture::kKinds] = {};
        Figures live, slice_peak;  // of the kinds that count
        std::int64_t peak_bytes = 0;
        bool are_sound = true;  // no account is negative or of an unknown kind
    };
    Sums sums_of_accounts() const noexcept {
        Sums sums;
        for (std::uint32_t id = 1; id < size(); ++id) {
            const capture::AccountRecord& l = hot_[id];
            const bool exists = l.kind < capture::kKinds;  // not where somebody else wrote to the file
            if (!exists || l.live_bytes < 0 || l.live_blocks < 0 || (l.live_blocks == 0 && l.live_bytes != 0))
                sums.are_sound = false;
            if (!exists) continue;
            sums.by_kind[l.kind] += l.live_bytes;
            if (!counted(l.kind)) continue;
            sums.live.bytes += l.live_bytes;
            sums.live.blocks += l.live_blocks;
            sums.slice_peak.bytes += at_slice_peak(id).bytes;
            sums.slice_peak.blocks += at_slice_peak(id).blocks;
            sums.peak_bytes += at_peak(id).bytes;
        }
        return sums;
    }
    bool is_slice_peak(const Figures& figures) const noexcept {
        return figures.bytes == header_->slice_peak_bytes && figures.blocks == header_->slice_peak_blocks;
    }

    std::uint32_t epoch_index() const noexcept {
        return header_->epoch_index & 1;
    }  // somebody else may have written to the file
    // A kill can come between any two stores but not within one: what belongs together is one store, the rest is in
    // order. tests/weak_memory_test.cpp tries every order that is left. On aarch64 before 8.4 another process may see
    // one half of a pair before the other.
    static_assert(offsetof(capture::AccountRecord, live_bytes) % 16 == 0 &&
                  offsetof(capture::AccountRecord, saved_bytes) % 16 == 0);
    // Bytes and blocks, changed by one store. Derived from the whole record: a compiler may assume that a pointer to
    // one member reaches no further than that member.
    using Pair [[gnu::vector_size(16), gnu::may_alias]] = std::int64_t;
    template <typename Record>
    static Pair& pair_at(Record& record, std::size_t offset) noexcept {
        return *reinterpret_cast<Pair*>(reinterpret_cast<char*>(&record) + offset);
    }
    static void save_live(capture::AccountRecord& account) noexcept {
        pair_at(account, offsetof(capture::AccountRecord, saved_bytes)) =
            pair_at(account, offsetof(capture::AccountRecord, live_bytes));
    }
    [[gnu::always_inline]] capture::AccountRecord& change_live(std::uint32_t id, std::int64_t bytes,
                                                               std::int64_t blocks) noexcept {
        capture::AccountRecord& account = hot_[id];
        save(id, account, *header_);
        pair_at(account, offsetof(capture::AccountRecord, live_bytes)) += Pair{bytes, blocks};
        return account;
    }
    [[gnu::always_inline]] capture::AccountRecord& add_allocated(std::uint32_t id, std::int64_t bytes,
                                                                 std::int64_t blocks) noexcept {
        capture::AccountRecord& account = change_live(id, bytes, blocks);
        account.total_bytes += static_cast<std::uint64_t>(bytes);
        account.total_blocks += static_cast<std::uint64_t>(blocks);
        return account;
    }
    // The total after all entries is not above the peak; in between it may be.
    void merge_entry(const ThreadAccounts::Entry& entry) noexcept {
        capture::AccountRecord& account = change_live(entry.account, entry.bytes, entry.blocks);
        account.total_bytes += entry.total_bytes;
        account.total_blocks += entry.total_blocks;
        cold_[entry.account].temporaries += entry.temporaries;
        header_->kind_live_bytes[account.kind] += entry.bytes;
        add_total(*header_, entry.bytes, entry.blocks);
    }
    static std::int64_t add_total(capture::Header& h, std::int64_t bytes, std::int64_t blocks) noexcept {
        Pair& total = pair_at(h, offsetof(capture::Header, live_bytes));
        const Pair changed = total + Pair{bytes, blocks};
        total = changed;
        return changed[0];
    }
    static_assert(offsetof(capture::Header, live_bytes) % 16 == 0 &&
                  offsetof(capture::Header, live_blocks) == offsetof(capture::Header, live_bytes) + 8);

    // The first change of an account in a slice always gets here, because each slice begins a generation.
    // Inline, as raise_peak() is: a call would make every event save registers.
    [[gnu::always_inline]] void save(std::uint32_t id, capture::AccountRecord& account,
                                     const capture::Header& h) noexcept {
        if (account.generation == h.generation) [[likely]]
            return;
        touched_[id / kGroup] |= kTouched;
        save_live(account);
        order_stores();
        account.generation = h.generation;
        order_stores();
    }

    [[gnu::always_inline]] static void raise_peak(capture::Header& h, std::int64_t live) noexcept {
        order_stores();
        // A reader uses the accounts' figures, so the peak itself may lag one event behind them.
        h.slice_peak_bytes = live;
        h.slice_peak_blocks = h.live_blocks;
        h.slice_peak_ns = h.heartbeat_ns;
        order_stores();
        ++h.generation;
        order_before_next_event();
    }

    [[gnu::always_inline]] void change_total(std::uint32_t kind, std::int64_t bytes, std::int64_t blocks) noexcept {
        capture::Header& h = *header_;
        h.kind_live_bytes[kind] += bytes;
        if (!counted(kind)) [[unlikely]]
            return;
        const std::int64_t live = add_total(h, bytes, blocks);
        if (is_peak_read()) [[unlikely]]
            update_meters(bytes, blocks);
        if (bytes > 0 && live > h.slice_peak_bytes) raise_peak(h, live);
    }

    // Scopes or lines read the heap's meters: updates figures that a recording alone does not need.
    [[gnu::noinline]] void update_meters(std::int64_t bytes, std::int64_t blocks) noexcept {
        thread_heap.change(bytes);
        if (bytes <= 0) return;
        thread_heap.allocations += blocks;
        metered_.bytes += bytes;
        metered_.blocks += blocks;
        const std::int64_t python = header_->kind_live_bytes[static_cast<std::uint32_t>(capture::Kind::python)];
        if (header_->live_bytes > heap_peak_.total_bytes) heap_peak_.total_bytes = header_->live_bytes;
        if (python > heap_peak_.python_bytes) heap_peak_.python_bytes = python;
    }

    // Calls visit(account) for every account of the groups that were touched as `when` says.
    template <typename Visit>
    void each_touched(std::uint8_t when, Visit visit) const {
        const std::uint32_t end = size();
        for (std::uint32_t group = 0; group < touched_.size(); ++group) {
            if ((touched_[group] & when) == 0) continue;
            const std::uint32_t first = group * kGroup, behind = first + kGroup < end ? first + kGroup : end;
            for (std::uint32_t id = first == 0 ? 1 : first; id < behind; ++id) {
                note_read();
                visit(id);
            }
        }
    }

    // A slice has ended; `kept`: its peak became the peak of the recording. Accounts touched in it may have changed
    // after its peak, so they count as changed in the next slice, too, and since that peak.
    void forget_touches(bool kept) noexcept {
        for (std::uint8_t& group : touched_) {
            if (group == 0) continue;
            const bool now = (group & kNow) != 0;
            const bool since_peak = kept ? now : (group & kSincePeak) != 0;
            group = static_cast<std::uint8_t>(kEver | (now ? kBefore : 0) | (since_peak ? kSincePeak : 0));
        }
    }

    void save_as_peak() noexcept {
        each_touched(kSincePeak, [this](std::uint32_t id) {
            const Figures f = at_slice_peak(id);
            cold_[id].peak_bytes = f.bytes;
            cold_[id].peak_blocks = f.blocks;
        });
    }

    void list_changes(std::uint64_t start_ns, std::uint64_t now_ns) {
        const capture::Header& h = *header_;
        const std::uint64_t first = entries_.size();
        // Slices of a program with very many stacks would fill the disk: past a bound, changes too small to see are
        // left out.
        const std::int64_t tolerance = first > kPlentyOfEntries ? h.slice_peak_bytes / 4096 : 0;
        std::int64_t unlisted = 0;
        // Accounts that were left out once must be checked each time from then on.
        each_touched(first > kPlentyOfEntries ? kEver : kNow | kBefore, [&](std::uint32_t id) {
            const Figures f = at_slice_peak(id);
            const std::int64_t change = f.bytes > cold_[id].entered_bytes ? f.bytes - cold_[id].entered_bytes
                                                                          : cold_[id].entered_bytes - f.bytes;
            if (change == 0) return;
            if (change <= tolerance) {
                unlisted = unlisted < change ? change : unlisted;
                return;
            }
            entries_.append({id, static_cast<std::uint32_t>(f.blocks), f.bytes});
            cold_[id].entered_bytes = f.bytes;
        });
        slices_.append({start_ns, now_ns, h.slice_peak_ns, h.slice_peak_bytes, h.slice_peak_blocks, first,
                        entries_.size() - first, unlisted});
    }

    static constexpr std::uint64_t kPlentyOfEntries = 2'000'000;

    capture::Header* header_ = nullptr;
    capture::InPieces* pieces_ = nullptr;
    std::atomic<bool> is_peak_read_{false};  // changes under the lock
    HeapPeak heap_peak_;
    Figures metered_;
    capture::FileTable<capture::AccountRecord> hot_;
    capture::FileTable<capture::AccountPeakRecord> cold_;
    capture::FileTable<capture::SliceRecord> slices_;
    capture::FileTable<capture::SliceEntryRecord> entries_;
    PageVector<std::uint32_t> first_of_node_, next_of_node_;
    std::uint32_t first_of_interval_ = 1;  // account

    // When each group of accounts was last touched, so that the end of a slice goes over those alone.
    static constexpr std::uint32_t kGroup = 32;
    static constexpr std::uint8_t kNow = 1, kBefore = 2, kSincePeak = 4, kEver = 8,
                                  kTouched = kNow | kSincePeak | kEver;
    PageVector<std::uint64_t> native_;  // a bit for each account
    PageVector<std::uint8_t> touched_;
};

}  // namespace hiwater
