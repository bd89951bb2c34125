// Events of threads that share the lock: each thread counts in accounts of its own (accounting/thread_accounts.h). An
// event that needs more takes the lock alone, which interrupts the sharing.
#include "stacks/current_stack.h"

namespace hiwater {

using capture::Kind;

bool Recorder::begin_sharing() noexcept {
    // Meters read the common total at every event, sampled recordings mostly need no lock, and counters alone have no
    // stacks to count by. Native frames are found under the lock.
    if (!is_on() || sampled() || only_counters_ || native_frames_.are_wanted() || accounts_.is_peak_read())
        return false;
    shared_room_below_peak_.store(accounts_.room_below_peak(), std::memory_order_relaxed);
    shares_in_order_ = is_peak_moving_.load(std::memory_order_relaxed);
    return true;
}

ThreadLocalAccounting::Episode Recorder::merge(const Sharing& who) noexcept {
    static_assert(EventsInOrder::kMostThreads == Sharing::kMost);
    const SignalsBlocked blocked;  // whoever jumps out would leave what is merged to be merged again
    Episode episode{0, 0};
    const auto each_thread = [&](const auto& visit) {
        who.each([&](LockTicket& ticket) { visit(Thread::of(ticket).accounts); });
    };
    if (shares_in_order_) {
        is_peak_moving_.store(accounts_.merge_in_order(each_thread), std::memory_order_relaxed);
    } else {
        accounts_.merge(each_thread);
    }
    who.each([&](LockTicket& ticket) {
        ThreadAccounts& accounts = Thread::of(ticket).accounts;
        ticket.took_part = accounts.events() != 0;
        episode.events += accounts.events();
        if (ticket.took_part) ++episode.threads;
        accounts.clear();
    });
    shared_events_ += episode.events;
    return episode;
}

void Recorder::merge_thread_accounts() noexcept {
    if (!lock_.is_shared()) return;
    BusyGuard busy;
    Hold hold(lock_);
}

// Records a block where the stack is known and has an account, its place in the table is free, and the thread may count
// or list it. Else returns false.
template <Kind kKind>
[[gnu::always_inline]] inline bool Recorder::add_shared(Thread& t, LiveTable::Region* region, std::uintptr_t address,
                                                        std::size_t bytes) noexcept {
    if (!is_on() || !is_up_to_date(t)) return false;
    if (t.has_unowned && bytes >= kAsksAgain && (hw_has_gil() || !has_asked(t, bytes))) return false;
    const auto is_new = [&t](hw_slot*) {
        hw_frames_forget(&t.memo);  // the next walk must see everything that moved
        return false;
    };
    if (!find_top(t, is_new, kKind)) return false;
    const std::uint32_t account = t.top->account[static_cast<std::uint32_t>(kKind)];
    if (account == 0) return false;
    ThreadAccounts::Entry* const entry = shares_in_order_ ? nullptr : t.accounts.entry_of(account);
    const auto size = static_cast<std::int64_t>(bytes);
    if (shares_in_order_ ? !t.accounts.may_list(bytes) : entry == nullptr) return false;
    if (entry != nullptr && !t.accounts.may_grow(size, shared_room_below_peak_)) {
        is_peak_moving_.store(true, std::memory_order_relaxed);
        return false;
    }
    const bool goes_plainly =
        bytes < LiveTable::kLargeBytes && LiveTable::insert_small_fast(region, address, bytes, account);
    if (!goes_plainly && !LiveTable::insert_shared(region, address, bytes, account)) return false;
    if (entry != nullptr) {
        t.accounts.add(*entry, size);
    } else {
        t.accounts.list(process::monotonic_ns(), account, bytes);
    }
    t.last_block = address;
    return true;
}

// After Lock::enter_fast_path() returned false. Returns whether the thread shares the lock; else it has left the fast
// path. A busy thread does not wait, because it may be the holder itself. While this one waits it is busy, so that its
// signal handlers do not wait either.
[[gnu::always_inline]] inline bool Recorder::share_or_leave(Thread& t) noexcept {
    if (lock_.shares(t.ticket)) [[likely]]
        return true;
    Lock::leave_fast_path(t.ticket);
    if (tls.busy != 0) return false;
    BusyGuard busy;
    return lock_.wait_to_share(t.ticket);
}

// After Lock::enter_fast_path() returned false. A function apart from record_locked(), whose stack frame costs as much
// as all of this work.
template <Kind kKind>
void* Recorder::record_shared(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes) noexcept {
    if (!share_or_leave(t)) [[unlikely]]
        return record_locked(block, bytes, kKind);
    const bool is_recorded =
        bytes < kLargeChange && add_shared<kKind>(t, region, reinterpret_cast<std::uintptr_t>(block), bytes);
    Lock::leave_fast_path(t.ticket);
    return is_recorded ? block : record_locked(block, bytes, kKind);
}

template void* Recorder::record_shared<Kind::python>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;
template void* Recorder::record_shared<Kind::native>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;

// Removes a block that the thread owns. `taken` null: the block is freed, else it is being reallocated.
[[gnu::always_inline]] inline bool Recorder::remove_shared(Thread& t, LiveTable::Region* region, std::uintptr_t address,
                                                           LiveTable::Place place, Block* taken) noexcept {
    const Block block = LiveTable::find_block(region, address, place);
    if (!is_on() || block.account == 0) return false;
    ThreadAccounts::Entry* const entry = shares_in_order_ ? nullptr : t.accounts.entry_of(block.account);
    if (shares_in_order_ ? !t.accounts.may_list(block.bytes) : entry == nullptr) return false;
    LiveTable::remove_shared(region, address, place);
    const bool is_temporary = taken == nullptr && t.last_block == address;
    if (entry != nullptr) {
        t.accounts.take(*entry, static_cast<std::int64_t>(block.bytes));
        if (is_temporary) ++entry->temporaries;
    } else {
        const std::uint32_t what = ThreadAccounts::kFreed | (is_temporary ? ThreadAccounts::kTemporary : 0);
        t.accounts.list(process::monotonic_ns(), block.account | what, block.bytes);
    }
    if (taken != nullptr) *taken = {block.account, block.bytes, session_};
    return true;
}

bool Recorder::take_shared(Thread& t, LiveTable::Region* region, std::uintptr_t address, LiveTable::Place place,
                           Block* taken) noexcept {
    if (!share_or_leave(t)) return false;
    const bool is_taken = remove_shared(t, region, address, place, taken);
    Lock::leave_fast_path(t.ticket);
    return is_taken;
}

template <bool kPlain>
void Recorder::forget_shared(Thread& t, LiveTable::Region* region, const void* block) noexcept {
    using Place = LiveTable::Place;
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    if (!share_or_leave(t)) [[unlikely]]
        return forget_locked(region, block);
    Place place = Place::nowhere;
    if (kPlain) {
        if (LiveTable::find_small_fast(region, address) != nullptr) place = Place::small;
    } else {
        place = LiveTable::place_of(region, address);
    }
    if (!kPlain && LiveTable::find_block(region, address, place).bytes >= kLargeChange) [[unlikely]] {
        Lock::leave_fast_path(t.ticket);
        return forget_locked(region, block);
    }
    const bool is_done = place == Place::nowhere || remove_shared(t, region, address, place, nullptr);
    Lock::leave_fast_path(t.ticket);
    if (place == Place::nowhere) count_unknown_free(block);
    if (!is_done) forget_locked(region, block);
}

template void Recorder::forget_shared<true>(Thread&, LiveTable::Region*, const void*) noexcept;
template void Recorder::forget_shared<false>(Thread&, LiveTable::Region*, const void*) noexcept;

}  // namespace hiwater
