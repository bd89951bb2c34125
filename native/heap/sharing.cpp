// Threads that allocate at once: each books its commonest events apart from the others (accounting/share.h). What else there is ends the
// sharing for a moment.
#include "session/recorder.h"

namespace hiwater {

using capture::Kind;

bool Recorder::open() noexcept {
    // Meters fold the total at every event; a sample is drawn without the lock mostly; and counters alone have no stacks to keep apart.
    if (!is_on() || sampled() || only_counters_ || accounts_.is_folding()) return false;
    shared_room_.store(accounts_.room_below_mark(), std::memory_order_relaxed);
    return true;
}

SharedBooks::Episode Recorder::close(const Sharing& who) noexcept {
    Episode episode{0, 0};
    accounts_.take_in([&](const auto& visit) { who.each([&](LockTicket& ticket) { visit(Thread::of(ticket).share); }); });
    who.each([&](LockTicket& ticket) {
        Share& share = Thread::of(ticket).share;
        ticket.took_part = share.events() != 0;
        episode.events += share.events();
        if (ticket.took_part) ++episode.threads;
        share.clear();
    });
    shared_events_ += episode.events;
    return episode;
}

void Recorder::bring_books_together() noexcept {
    if (!lock_.is_shared()) return;
    BusyGuard busy;
    Hold hold(lock_);
}

void Recorder::expect_filter() noexcept {
    BusyGuard busy;
    lock_.expect_filter();
}

void Recorder::expect_no_filter() noexcept {
    BusyGuard busy;
    lock_.expect_no_filter();
}

// A stack that is known, with a ledger; a place in the table where nothing is in the way; and a total that stays below the mark.
template <Kind kKind>
[[gnu::always_inline]] inline bool Recorder::book_apart(Thread& t, LiveTable::Region* region, std::uintptr_t address,
                                                        std::size_t bytes) noexcept {
    if (!is_on() || !is_up_to_date(t)) return false;
    const auto is_new = [&t](std::uint32_t) {
        hw_frames_forget(&t.memo);  // whoever looks next must see all that moved
        return false;
    };
    if (!find_top(t, is_new, kKind)) return false;
    const std::uint32_t ledger = t.top->ledger[static_cast<std::uint32_t>(kKind)];
    if (ledger == 0) return false;
    Share::Entry* const entry = t.share.entry_of(ledger);
    const auto size = static_cast<std::int64_t>(bytes);
    if (entry == nullptr || !t.share.may_rise(size, shared_room_)) return false;
    const bool goes_plainly = bytes < LiveTable::kLargeBytes && LiveTable::insert_plainly(region, address, bytes, ledger);
    if (!goes_plainly && !LiveTable::insert_apart(region, address, bytes, ledger)) return false;
    t.share.add(*entry, size);
    t.last_block = address;
    return true;
}

// After a knock. Who is busy may be who has the lock alone, and does not wait for that; and no signal's handler may, while this waits.
[[gnu::always_inline]] inline bool Recorder::shares_or_leaves(Thread& t) noexcept {
    if (lock_.shares(t.ticket)) [[likely]]
        return true;
    Lock::leave_short_way(t.ticket);
    if (tls.busy != 0) return false;
    BusyGuard busy;
    return lock_.waits_to_share(t.ticket);
}

// The thread has knocked (Lock::knock). Not in record_slowly(), whose frame costs as much as all that is done here.
template <Kind kKind>
void* Recorder::record_beside_others(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes) noexcept {
    if (!shares_or_leaves(t)) [[unlikely]]
        return record_slowly(block, bytes, kKind);
    const bool booked = book_apart<kKind>(t, region, reinterpret_cast<std::uintptr_t>(block), bytes);
    Lock::leave_short_way(t.ticket);
    return booked ? block : record_slowly(block, bytes, kKind);
}

template void* Recorder::record_beside_others<Kind::python>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;
template void* Recorder::record_beside_others<Kind::native>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;

// `taken` null: the block is freed.
[[gnu::always_inline]] inline bool Recorder::take_apart(Thread& t, LiveTable::Region* region, std::uintptr_t address,
                                                        LiveTable::Place place, Block* taken) noexcept {
    const Block block = LiveTable::look(region, address, place);
    if (!is_on() || block.ledger == 0) return false;
    Share::Entry* const entry = t.share.entry_of(block.ledger);
    if (entry == nullptr) return false;
    LiveTable::remove_apart(region, address, place);
    t.share.take(*entry, static_cast<std::int64_t>(block.bytes));
    if (taken != nullptr) {
        *taken = {block.ledger, block.bytes, session_};
    } else if (t.last_block == address) {
        ++entry->temporaries;
    }
    return true;
}

bool Recorder::take_beside_others(Thread& t, LiveTable::Region* region, std::uintptr_t address, LiveTable::Place place,
                                  Block* taken) noexcept {
    if (!shares_or_leaves(t)) return false;
    const bool is_taken = take_apart(t, region, address, place, taken);
    Lock::leave_short_way(t.ticket);
    return is_taken;
}

template <bool kPlain>
void Recorder::forget_beside_others(Thread& t, LiveTable::Region* region, const void* block) noexcept {
    using Place = LiveTable::Place;
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    if (!shares_or_leaves(t)) [[unlikely]]
        return forget_slowly(region, block);
    Place place = Place::nowhere;
    if (kPlain) {
        if (LiveTable::find_plainly(region, address) != nullptr) place = Place::small;
    } else {
        place = LiveTable::place_of(region, address);
    }
    const bool is_done = place == Place::nowhere || take_apart(t, region, address, place, nullptr);
    Lock::leave_short_way(t.ticket);
    if (!is_done) forget_slowly(region, block);
}

template void Recorder::forget_beside_others<true>(Thread&, LiveTable::Region*, const void*) noexcept;
template void Recorder::forget_beside_others<false>(Thread&, LiveTable::Region*, const void*) noexcept;

}  // namespace hiwater
