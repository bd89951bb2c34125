// What the hooks report. Each event: find the stack, then one short stretch under the lock. In the short way of the lock, both are one
// stretch. No foreign code, no heap. The commonest events are in quick_events.h.
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "heap/quick_events.h"

namespace hiwater {

using capture::Kind;

constinit Switches g_switches{};
std::atomic<bool> g_sampled{false};

namespace {

std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

}  // namespace

// A thread that knows its stack looks at the epoch only: so that it sees the end of a recording, that moves too.
void Recorder::set_mode(Mode mode) noexcept {
    if (mode != Mode::on) epoch_.fetch_add(1, std::memory_order_relaxed);
    Wanted wanted = Wanted::by_the_long_way;
    if (!sampled() && mode != Mode::off) wanted = Wanted::every_block;
    if (sampled() && mode == Mode::on && draws_few()) wanted = Wanted::few_blocks;
    g_switches.wanted.store(wanted, std::memory_order_relaxed);
    set_small_below();
    g_switches.mode.store(mode, std::memory_order_release);
}

// Several threads may do it at once: the last look at what it depends on is right.
void Recorder::set_small_below() noexcept {
    bool is_asked;
    do {
        is_asked = python_is_asked();
        const auto bound = [&](Wanted wanted) { return !is_asked && wants(wanted) ? kSmallObject + 1 : 0; };
        g_switches.small_below.every_block.store(bound(Wanted::every_block));
        g_switches.small_below.few_blocks.store(bound(Wanted::few_blocks));
    } while (g_switches.python_is_asked.load() != is_asked);
}

void Recorder::ask_python() noexcept {
    g_switches.python_is_asked.store(true);
    set_small_below();
}

void Recorder::answer_for_python() noexcept {
    if (is_inside()) return;
    g_switches.python_is_asked.store(false);
    set_small_below();
    sampler::resume_if_due();
}

// Under the lock or not. Recording ends here by our own fault; the program goes on, later events are counted as lost.
void Recorder::fail(const char* reason) noexcept {
    if (!is_on()) return;
    ::strncpy(fail_reason_, reason, sizeof fail_reason_ - 1);
    set_mode(Mode::counting_losses);
    spare_room.drop();
    lose_event();
}

// Under the lock: what lay at an address was freed behind our back.
void Recorder::forget_stale(std::uintptr_t address) noexcept {
    const Block stale = live_.remove(address);
    if (stale.ledger != 0) forget_block(stale);
}
void Recorder::forget_block(const Block& stale) noexcept {
    accounts_.debit_block(stale.ledger, static_cast<std::int64_t>(stale.bytes));
}

// Under the lock.
[[gnu::always_inline]] inline void Recorder::put(LiveTable::Region* region, std::uintptr_t address, std::uint64_t bytes,
                                                 std::uint32_t ledger) {
    LiveTable::insert(region, address, bytes, ledger, [this](const Block& stale) { forget_block(stale); });
    accounts_.credit_block(ledger, static_cast<std::int64_t>(bytes));
}

// A thread at its end, whose state has been given back: its blocks hang under its base, without frames.
void Recorder::on_late_alloc(std::uintptr_t address, std::size_t bytes, Kind kind) {
    Hold hold(lock_, ticket());
    if (!is_on() || tls.exit_node == 0 || tls.exit_session != session_) return;
    put(live_.room_for(address, bytes), address, bytes, accounts_.ledger(tls.exit_node, kind));
}

// The stack of this moment is another than at the last event: its top frame stands at `instr`, or more than that moved (null).
template <Kind kKind>
void* Recorder::record_moved_held(Thread& t, const void* instr, void* block, std::size_t bytes) noexcept {
    if (is_up_to_date(t) && find_moved_top(t, instr, [&](std::uint32_t changed) { return settle_top(t, changed); }))
        return book_held<kKind>(t, live_.find(address_of(block)), block, bytes);
    Lock::leave_short_way(t.ticket);
    return record_slowly(block, bytes, kKind);
}

template void* Recorder::record_moved_held<Kind::python>(Thread&, const void*, void*, std::size_t) noexcept;
template void* Recorder::record_moved_held<Kind::native>(Thread&, const void*, void*, std::size_t) noexcept;

template <Kind kKind>
void* Recorder::book_slowly_held(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes) noexcept {
    const std::uintptr_t address = address_of(block);
    std::uint32_t ledger = t.top->ledger[static_cast<std::uint32_t>(kKind)];
    if (ledger == 0) guarded([&] { ledger = ledger_at_top(t, kKind); });
    if (!LiveTable::has_room(region, address, bytes)) guarded([&] { live_.room_for(address, bytes); });
    if (ledger != 0 && is_on()) [[likely]] {
        put(region, address, bytes, ledger);
        t.last_block = address;
    } else if (is_on()) {
        forget_stale(address);  // our own
    }
    Lock::leave_short_way(t.ticket);
    return block;
}

template <Kind kKind>
void* Recorder::book_large_held(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes) noexcept {
    constexpr auto kind = static_cast<std::uint32_t>(kKind);
    const std::uint32_t ledger = t.top->ledger[kind];
    if (!LiveTable::insert_large_plainly(region, address_of(block), bytes, ledger)) [[unlikely]]
        return book_slowly_held<kKind>(t, region, block, bytes);
    accounts_.credit_plainly(ledger, kind, static_cast<std::int64_t>(bytes));
    t.last_block = address_of(block);
    Lock::leave_short_way(t.ticket);
    return block;
}

template void* Recorder::book_large_held<Kind::python>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;
template void* Recorder::book_large_held<Kind::native>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;
template void* Recorder::book_slowly_held<Kind::python>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;
template void* Recorder::book_slowly_held<Kind::native>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;

void* Recorder::record_slowly(void* block, std::size_t bytes, Kind kind) noexcept {
    if (is_inside()) return block;
    guarded([&] {
        const std::uintptr_t address = address_of(block);
        LiveTable::Region* const region = live_.room_for(address, bytes);
        if (mine() == nullptr) return on_late_alloc(address, bytes, kind);
        bool was_behind = false;
        const bool booked = at_stack(
            [&](Thread& t) {
                const std::uint32_t ledger = ledger_at_top(t, kind);
                if (ledger == 0) return forget_stale(address);  // our own
                put(region, address, bytes, ledger);
                t.last_block = address;
            },
            &was_behind, kind);
        if (!booked) lose_event();
        // It calls the interpreter: a signal's handler does not come here, as Python's allocators are not for handlers.
        if (was_behind && kind == Kind::python) device_watch::ask_from_here();
    });
    return block;
}

// Under the lock, or in the short way of it.
template <bool kFreed>
[[gnu::always_inline]] inline Block Recorder::take_out(LiveTable::Region* region, std::uintptr_t address, LiveTable::Place place,
                                                       const Thread* t) noexcept {
    if (!is_on()) [[unlikely]]
        return {};
    Block taken = LiveTable::remove(region, address, place);
    taken.session = session_;
    if (taken.ledger == 0) [[unlikely]]
        return {};
    accounts_.debit_block(taken.ledger, static_cast<std::int64_t>(taken.bytes));
    if (kFreed && t != nullptr && t->last_block == address) accounts_.count_temporary(taken.ledger);
    return taken;
}

void Recorder::forget_held(Thread& t, LiveTable::Region* region, const void* block) noexcept {
    const std::uintptr_t address = address_of(block);
    take_out<true>(region, address, LiveTable::place_of(region, address), &t);
    Lock::leave_short_way(t.ticket);
}

template <bool kFreed>
Block Recorder::take_anyhow(LiveTable::Region* region, std::uintptr_t address) noexcept {
    // Safe without the lock: nobody but the owner of a block, who is here, may change its words.
    const LiveTable::Place place = LiveTable::place_of(region, address);
    if (place == LiveTable::Place::nowhere) return {};
    Thread* const t = tls.thread;
    if (t != nullptr && Lock::may_knock(t->ticket)) {
        if (lock_.knock(t->ticket)) [[likely]] {
            const Block taken = take_out<kFreed>(region, address, place, t);
            Lock::leave_short_way(t->ticket);
            return taken;
        }
        if (Block taken; take_beside_others(*t, region, address, place, kFreed ? nullptr : &taken)) return taken;
    }
    if (is_inside()) return {};
    BusyGuard busy;
    Hold hold(lock_, ticket());
    return take_out<kFreed>(region, address, place, t);
}

void Recorder::forget_slowly(LiveTable::Region* region, const void* block) noexcept {
    take_anyhow<true>(region, address_of(block));
}

// A block in a stretch that may have large ones. Without a call, so that no register has to be saved.
void Recorder::forget_mixed(LiveTable::Region* region, const void* block) noexcept {
    Thread* const t = tls.thread;
    if (t == nullptr || !Lock::may_knock(t->ticket)) [[unlikely]]
        return forget_slowly(region, block);
    if (!lock_.knock(t->ticket)) [[unlikely]]
        return forget_beside_others<false>(*t, region, block);
    if (!is_on() || accounts_.is_folding()) [[unlikely]]
        return forget_held(*t, region, block);
    const Block taken = LiveTable::remove_mixed(region, address_of(block));
    if (taken.ledger != 0) [[likely]] {
        accounts_.debit_plainly(taken.ledger, static_cast<std::int64_t>(taken.bytes));
        if (t->last_block == address_of(block)) accounts_.count_temporary(taken.ledger);
    }
    Lock::leave_short_way(t->ticket);
}

void Recorder::forget_unless_large(LiveTable::Region* region, const void* block) noexcept {
    if (LiveTable::place_of(region, address_of(block)) != LiveTable::Place::large) forget_mixed(region, block);
}

Block Recorder::take_block(const void* block) noexcept {
    const std::uintptr_t address = address_of(block);
    LiveTable::Region* const region = live_.find(address);
    if (region == nullptr) return {};
    Thread* const t = tls.thread;
    if (t == nullptr || !Lock::may_knock(t->ticket)) [[unlikely]]
        return take_anyhow<false>(region, address);
    if (!lock_.knock(t->ticket)) [[unlikely]] {
        Block taken;
        const bool is_taken = take_beside_others(*t, region, address, LiveTable::place_of(region, address), &taken);
        return is_taken ? taken : take_anyhow<false>(region, address);
    }
    Block taken;
    if (is_on()) [[likely]]
        taken = LiveTable::remove_mixed(region, address);
    taken.session = session_;
    if (taken.ledger != 0) accounts_.debit_block(taken.ledger, static_cast<std::int64_t>(taken.bytes));
    Lock::leave_short_way(t->ticket);
    return taken;
}

void Recorder::put_back(const void* block, Block taken) noexcept {
    if (taken.ledger == 0 || is_inside()) return;
    BusyGuard busy;
    Hold hold(lock_, ticket());
    if (!is_on() || taken.session != session_) return;
    const std::uintptr_t address = address_of(block);
    if (sampled()) return put_back_sample(address, taken);
    LiveTable::insert(live_.find(address), address, taken.bytes, taken.ledger, [this](const Block& stale) { forget_block(stale); });
    accounts_.restore(taken.ledger, static_cast<std::int64_t>(taken.bytes));
}

void Recorder::on_code_death(const void* code) noexcept {
    BusyGuard busy;
    Hold hold(lock_, ticket());
    if (!tree_.forget_code(code)) return;
    const std::uintptr_t page = 4096;
    const std::uintptr_t start = address_of(hw_code_start(code)), end = start + hw_code_bytes(code);
    for (std::uintptr_t at = start & ~(page - 1); at < end; at += page)
        code_generation(reinterpret_cast<const void*>(at)).fetch_add(1, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::on_mark(capture::MarkKind kind, std::uint64_t value) noexcept {
    if (is_inside()) return;
    guarded([&] { at_stack([&](Thread& t) { marks_.append({now_ns(), value, static_cast<std::uint32_t>(kind), t.top->node}); }); });
}

void Recorder::on_refused(std::size_t bytes) noexcept {
    constexpr std::uint64_t kMostMarks = 10'000, kShortestNs = 25'000'000;
    if (is_inside() || !is_on() || only_counters_) return;
    guarded([&] {
        at_stack([&](Thread& t) {
            if (++refusals_ > kMostMarks) return;
            const std::uint64_t now = now_ns();
            marks_.append({now, bytes, static_cast<std::uint32_t>(capture::MarkKind::out_of_memory), t.top->node});
            // What was live now: a slice of no length, between two that are closed at the same moment.
            if (refusals_ > 1 && now - last_refused_slice_ns_ < std::max(kShortestNs, now / 64)) return;
            last_refused_slice_ns_ = now;
            accounts_.close_slice(now);
            accounts_.close_slice(now);
        });
    });
}

}  // namespace hiwater
