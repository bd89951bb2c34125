// Threads that allocate at once: each books its commonest events apart from the others (ledger/share.h). What else there is ends the
// sharing for a moment.
#include "recorder.h"

namespace hiwater {

bool Recorder::open() noexcept {
    // Meters fold the total at every event; a sample is drawn without the lock mostly; and counters alone have no stacks to keep apart.
    if (!is_on() || sampled() || only_counters_ || accounts_.is_folding()) return false;
    shared_room_.store(accounts_.room_below_mark(), std::memory_order_relaxed);
    return true;
}

// What rose first: a block may have been made by one thread and freed by another, and no ledger shows less than nothing should the
// process be killed in between.
SharedBooks::Episode Recorder::close(const Sharing& who) noexcept {
    Episode episode{0, 0};
    for (const bool rose : {true, false}) {
        who.each([&](LockTicket& ticket) {
            Thread::of(ticket).share.each([&](const Share::Entry& entry) {
                if ((entry.bytes >= 0) == rose) accounts_.take_in(entry);
            });
        });
    }
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

bool Recorder::record_apart(const void* block, std::size_t bytes, capture::Kind kind) noexcept {
    Thread* const t = tls.thread;
    if (t == nullptr || !lock_.try_shared(t->ticket)) return false;
    const bool booked = book_apart(*t, reinterpret_cast<std::uintptr_t>(block), bytes, kind);
    Lock::leave_short_way(t->ticket);
    return booked;
}

// A stack that is known, with a ledger; a place in the table where nothing is in the way; and a total that stays below the mark.
bool Recorder::book_apart(Thread& t, std::uintptr_t address, std::size_t bytes, capture::Kind kind) noexcept {
    if (!is_on() || !is_up_to_date(t)) return false;
    const auto is_new = [&t](std::uint32_t) {
        hw_frames_forget(&t.memo);  // whoever looks next must see all that moved
        return false;
    };
    if (!find_top(t, is_new)) return false;
    LiveTable::Region* const region = live_.find(address);
    const std::uint32_t ledger = t.top->ledger[static_cast<std::uint32_t>(kind)];
    if (region == nullptr || ledger == 0) return false;
    Share::Entry* const entry = t.share.entry_of(ledger);
    const auto size = static_cast<std::int64_t>(bytes);
    if (entry == nullptr || !t.share.may_rise(size, shared_room_)) return false;
    if (!LiveTable::insert_apart(region, address, bytes, ledger)) return false;
    t.share.add(*entry, size);
    t.last_block = address;
    return true;
}

bool Recorder::take_apart(LiveTable::Region* region, std::uintptr_t address, LiveTable::Place place, bool freed,
                          Block* taken) noexcept {
    Thread* const t = tls.thread;
    if (t == nullptr || !lock_.try_shared(t->ticket)) return false;
    const Block block = LiveTable::look(region, address, place);
    Share::Entry* const entry = is_on() && block.ledger != 0 ? t->share.entry_of(block.ledger) : nullptr;
    if (entry != nullptr) {
        LiveTable::remove_apart(region, address, place);
        t->share.take(*entry, static_cast<std::int64_t>(block.bytes));
        if (freed && t->last_block == address) ++entry->temporaries;
        *taken = block;
        taken->session = session_;
    }
    Lock::leave_short_way(t->ticket);
    return entry != nullptr;
}

}  // namespace hiwater
