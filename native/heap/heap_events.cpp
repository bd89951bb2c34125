// Events of blocks in an exact recording, beyond the fast path (fast_path.h). Each event finds the stack and then
// changes the tables in one short section under the lock. On the fast path both are one section. No foreign code runs,
// and no memory comes from the heap. Longer than 400 lines because these functions are inlined into one another: an
// event that leaves the fast path continues in the next one with a jump.
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "heap/fast_path.h"
#include "session/main_thread_call.h"
#include "stacks/current_stack.h"

namespace hiwater {

using capture::Kind;

constinit Switches g_switches{};
std::atomic<bool> g_sampled{false};

namespace {

std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

}  // namespace

// A thread whose stack did not change checks the epoch only. So the epoch moves at the end of a recording, too.
void Recorder::set_mode(Mode mode) noexcept {
    if (mode != Mode::on) request_attention();
    Wanted wanted = Wanted::slow_path;
    if (!sampled() && mode != Mode::off) wanted = Wanted::every_block;
    if (sampled() && mode == Mode::on && samples_few_blocks()) wanted = Wanted::few_samples;
    g_switches.wanted.store(wanted, std::memory_order_relaxed);
    set_small_below();
    g_switches.mode.store(mode);
    set_plain_epoch();
}

// As set_small_below().
void Recorder::set_plain_epoch() noexcept {
    std::uint32_t epoch;
    bool is_plain;
    const auto is_plain_now = [this] { return g_switches.mode.load() == Mode::on && !accounts_.is_peak_read(); };
    do {
        epoch = epoch_.load();
        is_plain = is_plain_now();
        g_switches.plain_epoch.store(is_plain ? epoch : 0);
    } while (epoch_.load() != epoch || is_plain_now() != is_plain);
}

// Several threads may do this at the same time. Each repeats it until nothing that it read has changed, so the last
// result is right.
void Recorder::set_small_below() noexcept {
    bool is_asked;
    Wanted wanted;
    do {
        is_asked = python_is_asked();
        wanted = hiwater::wanted();
        g_switches.small_below.every_block.store(!is_asked && wanted == Wanted::every_block ? LiveTable::kLargeBytes
                                                                                            : 0);
        g_switches.small_below.few_samples.store(wanted == Wanted::few_samples ? kSmallObject + 1 : 0);
    } while (g_switches.python_is_asked.load() != is_asked || g_switches.wanted.load() != wanted);
}

void Recorder::ask_python() noexcept {
    g_switches.python_is_asked.store(true);
    set_small_below();
}

void Recorder::hurry_python() noexcept {
    tls.unanswered = 0;
    g_switches.small_below.few_samples.store(0);
}

void Recorder::answer_for_python() noexcept {
    if (is_inside()) return;
    const bool is_too_early = sampler::is_to_rest();
    if (!is_too_early) g_switches.python_is_asked.store(false);
    set_small_below();  // also after hurry_python()
    if (!is_too_early) sampler::resume();
}

// With or without the lock. Ends the recording because of a fault of ours. The program continues, and later events are
// counted as lost.
void Recorder::fail(const char* reason) noexcept {
    if (!is_on()) return;
    ::strncpy(fail_reason_, reason, sizeof fail_reason_ - 1);
    set_mode(Mode::counting_losses);
    spare_room.drop();
    lose_event();
}

// Under the lock: the block at this address was freed without an event.
void Recorder::remove_stale(std::uintptr_t address) noexcept {
    const Block stale = live_.remove(address);
    if (stale.account != 0) debit_stale(stale);
}
void Recorder::debit_stale(const Block& stale) noexcept {
    accounts_.debit_block(stale.account, static_cast<std::int64_t>(stale.bytes));
}

// Under the lock.
[[gnu::always_inline]] inline void Recorder::insert_block(LiveTable::Region* region, std::uintptr_t address,
                                                          std::uint64_t bytes, std::uint32_t account) {
    LiveTable::insert(region, address, bytes, account, [this](const Block& stale) { debit_stale(stale); });
    accounts_.credit_block(account, static_cast<std::int64_t>(bytes));
}

// A thread at its end has returned its state. Its blocks are recorded below its base node, without frames.
void Recorder::record_at_thread_exit(std::uintptr_t address, std::size_t bytes, Kind kind) {
    Hold hold(lock_, ticket());
    if (!is_on() || tls.exit_node == 0 || tls.exit_session != session_) return;
    insert_block(live_.room_for(address, bytes), address, bytes, accounts_.account(tls.exit_node, kind));
}

template <Kind kKind, bool kIsSmall>
void* Recorder::record(void* block, std::size_t bytes) noexcept {
    if (kIsSmall && bytes >= LiveTable::kLargeBytes) __builtin_unreachable();
    return recorder().record_here<kKind>(block, bytes);
}

template void* Recorder::record<Kind::python, true>(void*, std::size_t) noexcept;
template void* Recorder::record<Kind::python, false>(void*, std::size_t) noexcept;
template void* Recorder::record<Kind::native, true>(void*, std::size_t) noexcept;
template void* Recorder::record<Kind::native, false>(void*, std::size_t) noexcept;

// It can't be seen without a call whether the stack is that of the last event: mostly, the thread has released the GIL.
template <Kind kKind>
void* Recorder::record_biased_unattached(Thread& t, LiveTable::Region* region, void* block,
                                         std::size_t bytes) noexcept {
    const void* instr = nullptr;
    if (!hw_frames_are_settled_on(&t.memo, hw_top_frame(&t.memo), &instr))
        return record_biased_moved<kKind>(t, nullptr, block, bytes);
    if (!t.stand_at(instr)) return record_biased_moved<kKind>(t, instr, block, bytes);
    return record_biased<kKind>(t, region, block, bytes);
}

// Something happened since the thread's last event that it must notice, or a meter reads the heap's peaks.
template <Kind kKind>
void* Recorder::record_biased_unsettled(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes) noexcept {
    if (is_up_to_date(t) && find_top(t, [&](hw_slot* changed) { return settle_top(t, changed); }, kKind))
        return is_plain() ? record_biased<kKind>(t, region, block, bytes)
                          : record_biased_rare<kKind>(t, region, block, bytes);
    Lock::leave_fast_path(t.ticket);
    return record_locked(block, bytes, kKind);
}

template void* Recorder::record_biased_unsettled<Kind::python>(Thread&, LiveTable::Region*, void*,
                                                               std::size_t) noexcept;
template void* Recorder::record_biased_unsettled<Kind::native>(Thread&, LiveTable::Region*, void*,
                                                               std::size_t) noexcept;

namespace {

template <Kind kKind>
[[gnu::always_inline]] inline hw_slot* refreshed(hw_memo& memo, hw_grow grow) noexcept {
    if constexpr (kKind == Kind::native) return hw_frames_refresh(&memo, grow);
    hw_frames_see_attached(&memo);
    return hw_frames_refresh_with_gil(&memo, grow);
}

}  // namespace

// The stack differs from that of the last event: the top frame stands at `instr`, or more than that changed (null).
template <Kind kKind>
void* Recorder::record_biased_moved(Thread& t, const void* instr, void* block, std::size_t bytes) noexcept {
    const auto is_found = [&](hw_slot* changed) {
        return find_changed_top(t, changed, [&](hw_slot* unknown) { return settle_top(t, unknown); });
    };
    if (only_counters_ ||
        is_found(instr != nullptr ? hw_frames_move_top(&t.memo, instr) : refreshed<kKind>(t.memo, grow_memo)))
        return record_biased<kKind>(t, live_.find(address_of(block)), block, bytes);
    Lock::leave_fast_path(t.ticket);
    return record_locked(block, bytes, kKind);
}

template void* Recorder::record_biased_moved<Kind::python>(Thread&, const void*, void*, std::size_t) noexcept;
template void* Recorder::record_biased_moved<Kind::native>(Thread&, const void*, void*, std::size_t) noexcept;

// Charges a block to the account of a known walk. False, and nothing is done, where that takes more than this.
template <Kind kKind>
[[gnu::always_inline]] inline bool Recorder::charge_known(Thread& t, LiveTable::Region* region, std::uintptr_t address,
                                                          std::size_t bytes, std::uint32_t account) noexcept {
    if (account == 0 || bytes >= t.native->known_below) [[unlikely]]
        return false;
    if (!(bytes < LiveTable::kLargeBytes ? LiveTable::insert_small_fast(region, address, bytes, account)
                                         : LiveTable::insert_large_fast(region, address, bytes, account))) [[unlikely]]
        return false;
    accounts_.credit_fast(account, static_cast<std::uint32_t>(kKind), static_cast<std::int64_t>(bytes));
    t.last_block = address;
    Lock::leave_fast_path(t.ticket);
    return true;
}

// Where the stack has no account: with native frames, it may have that of a walk that would be the same. Hooks jump
// here if they can: then this returns to the hook's caller.
template <Kind kKind>
void* Recorder::record_biased_native(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes) noexcept {
    if (t.native == nullptr) return record_biased_rare<kKind>(t, region, block, bytes);
    const auto* const here = static_cast<const std::uintptr_t*>(__builtin_frame_address(0));
    const KnownWalks::Key key{here[1], address_of(here + 2), t.top->place, kKind};
    const std::uint32_t account = t.native->account_at(key, t);
    if (!charge_known<kKind>(t, region, address_of(block), bytes, account)) [[unlikely]]
        return record_biased_walk<kKind>(t, region, block, bytes, {key, here[0], account});
    return block;
}

// The same where the first walk that comes to mind is another, or the tables need more.
template <Kind kKind>
void* Recorder::record_biased_walk(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes,
                                   NativeStack::Wanted wanted) noexcept {
    if (bytes >= kAsksAgain || t.top->is_internal()) return record_biased_rare<kKind>(t, region, block, bytes);
    if (wanted.known == 0) wanted.known = t.native->find_account(wanted.key, t);
    if (charge_known<kKind>(t, region, address_of(block), bytes, wanted.known)) return block;
    std::uint32_t account = wanted.known;
    if (account == 0 || bytes >= t.native->known_below)
        guarded([&] { account = account_of_unknown_walk(t, kKind, wanted); });
    return finish_biased<kKind>(t, region, block, bytes, account);
}

template void* Recorder::record_biased_native<Kind::python>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;
template void* Recorder::record_biased_native<Kind::native>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;

template <Kind kKind>
void* Recorder::record_biased_rare(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes) noexcept {
    if (bytes >= kLargeChange) [[unlikely]] {
        Lock::leave_fast_path(t.ticket);
        return record_locked(block, bytes, kKind);
    }
    std::uint32_t account = t.top->account[static_cast<std::uint32_t>(kKind)];
    if (account == 0) guarded([&] { account = account_at_top(t, kKind); });
    return finish_biased<kKind>(t, region, block, bytes, account);
}

// The account is found, or there is none.
template <Kind kKind>
[[gnu::always_inline]] inline void* Recorder::finish_biased(Thread& t, LiveTable::Region* region, void* block,
                                                            std::size_t bytes, std::uint32_t account) noexcept {
    const std::uintptr_t address = address_of(block);
    if (!LiveTable::has_room(region, address, bytes)) guarded([&] { live_.room_for(address, bytes); });
    if (account != 0 && is_on()) [[likely]] {
        insert_block(region, address, bytes, account);
        t.last_block = address;
    } else if (is_on()) {
        remove_stale(address);  // a block of hiwater's own
    }
    Lock::leave_fast_path(t.ticket);
    return block;
}

template <Kind kKind>
void* Recorder::record_biased_large(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes) noexcept {
    constexpr auto kind = static_cast<std::uint32_t>(kKind);
    if (t.has_unowned && bytes >= kAsksAgain) [[unlikely]] {
        guarded([&] { renew_wait(t, bytes); });
        if (t.top->account[kind] == 0) return record_biased_rare<kKind>(t, region, block, bytes);
    }
    const std::uint32_t account = t.top->account[kind];
    if (bytes >= kLargeChange) [[unlikely]] {
        Lock::leave_fast_path(t.ticket);
        return record_locked(block, bytes, kKind);
    }
    if (!LiveTable::insert_large_fast(region, address_of(block), bytes, account)) [[unlikely]]
        return record_biased_rare<kKind>(t, region, block, bytes);
    accounts_.credit_fast(account, kind, static_cast<std::int64_t>(bytes));
    t.last_block = address_of(block);
    Lock::leave_fast_path(t.ticket);
    return block;
}

template void* Recorder::record_biased_large<Kind::python>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;
template void* Recorder::record_biased_large<Kind::native>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;
template void* Recorder::record_biased_rare<Kind::python>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;
template void* Recorder::record_biased_rare<Kind::native>(Thread&, LiveTable::Region*, void*, std::size_t) noexcept;

void* Recorder::record_locked(void* block, std::size_t bytes, Kind kind) noexcept {
    if (is_inside()) return block;
    if (bytes >= kLargeChange) before_rise(bytes);
    guarded([&] {
        const std::uintptr_t address = address_of(block);
        LiveTable::Region* const region = live_.room_for(address, bytes);
        if (mine() == nullptr) return record_at_thread_exit(address, bytes, kind);
        bool was_behind = false;
        const bool is_recorded = at_stack(
            [&](Thread& t) {
                if (t.has_unowned && bytes >= kAsksAgain) renew_wait(t, bytes);
                const std::uint32_t account = account_at_top(t, kind);
                if (account == 0) return remove_stale(address);  // a block of hiwater's own
                insert_block(region, address, bytes, account);
                t.last_block = address;
            },
            &was_behind, kind);
        if (!is_recorded) lose_event();
        // This calls the interpreter, so it must not run in a signal handler. None gets here, because Python's
        // allocators are not for handlers.
        if (was_behind && kind == Kind::python) MainThreadCall::add_due();
    });
    return block;
}

// Under the lock, by fast path or slow path.
template <bool kFreed>
[[gnu::always_inline]] inline Block Recorder::remove_exclusive(LiveTable::Region* region, std::uintptr_t address,
                                                               LiveTable::Place place, const Thread* t) noexcept {
    if (!is_on()) [[unlikely]]
        return {};
    Block taken = LiveTable::remove(region, address, place);
    taken.session = session_;
    if (taken.account == 0) [[unlikely]]
        return {};
    accounts_.debit_block(taken.account, static_cast<std::int64_t>(taken.bytes));
    if (kFreed && t != nullptr && t->last_block == address) accounts_.count_temporary(taken.account);
    return taken;
}

void Recorder::forget_biased_rare(Thread& t, LiveTable::Region* region, const void* block) noexcept {
    const std::uintptr_t address = address_of(block);
    const Block taken = remove_exclusive<true>(region, address, LiveTable::place_of(region, address), &t);
    Lock::leave_fast_path(t.ticket);
    if (taken.account == 0) count_unknown_free(block);
    if (taken.bytes >= kLargeChange) announce_release(block, taken);
}

template <bool kFreed>
Block Recorder::take_locked(LiveTable::Region* region, std::uintptr_t address) noexcept {
    // Safe without the lock: only the owner of a block may change its words, and the caller owns it.
    const LiveTable::Place place = LiveTable::place_of(region, address);
    if (place == LiveTable::Place::nowhere) return {};
    Thread* const t = tls.thread;
    if (t != nullptr && Lock::may_enter_fast_path(t->ticket)) {
        if (lock_.enter_fast_path(t->ticket)) [[likely]] {
            const Block taken = remove_exclusive<kFreed>(region, address, place, t);
            Lock::leave_fast_path(t->ticket);
            return taken;
        }
        if (Block taken; take_shared(*t, region, address, place, kFreed ? nullptr : &taken)) return taken;
    }
    if (is_inside()) return {};
    BusyGuard busy;
    Hold hold(lock_, ticket());
    return remove_exclusive<kFreed>(region, address, place, t);
}

void Recorder::forget(const void* block) noexcept {
    LiveTable::Region* const region = region_of(block);
    if (region == nullptr || !forget_small(region, block)) forget_other<false>(region, block);
}

template <bool kFreeIsHooked>
void Recorder::forget_other(LiveTable::Region* region, const void* block) noexcept {
    if (region == nullptr) return count_unknown_free(block);
    Thread& t = Thread::of(*tls.ready);
    const bool has_small_only = LiveTable::has_small_only(region, address_of(block));
    if (has_small_only && Lock::may_enter_fast_path(t.ticket)) {
        if (!lock_.enter_fast_path(t.ticket)) return forget_shared<true>(t, region, block);
        Lock::leave_fast_path(t.ticket);
    }
    return kFreeIsHooked && !has_small_only ? forget_unless_large(region, block) : forget_any_size(region, block);
}

template void Recorder::forget_other<false>(LiveTable::Region*, const void*) noexcept;
template void Recorder::forget_other<true>(LiveTable::Region*, const void*) noexcept;

void Recorder::forget_locked(LiveTable::Region* region, const void* block) noexcept {
    // The thread owns the block, so it may read its words without the lock.
    const std::uint64_t bytes = live_.find_block(address_of(block)).bytes;
    if (bytes >= kLargeChange) before_release(bytes);
    if (take_locked<true>(region, address_of(block)).account == 0) count_unknown_free(block);
    if (bytes >= kLargeChange) after_release();
}

// A block of any size, in a stretch that may have large blocks. Makes no call, so no register has to be saved.
void Recorder::forget_any_size(LiveTable::Region* region, const void* block) noexcept {
    Thread* const t = tls.thread;
    if (t == nullptr || !Lock::may_enter_fast_path(t->ticket)) [[unlikely]]
        return forget_locked(region, block);
    if (!lock_.enter_fast_path(t->ticket)) [[unlikely]]
        return forget_shared<false>(*t, region, block);
    if (!is_plain()) [[unlikely]]
        return forget_biased_rare(*t, region, block);
    Block taken = LiveTable::remove_any_size(region, address_of(block));
    taken.session = session_;
    if (taken.account != 0) [[likely]] {
        accounts_.debit_fast(taken.account, static_cast<std::int64_t>(taken.bytes));
        if (t->last_block == address_of(block)) accounts_.count_temporary(taken.account);
    } else {
        count_unknown_free(block);
    }
    Lock::leave_fast_path(t->ticket);
    if (taken.bytes >= kLargeChange) [[unlikely]]
        announce_release(block, taken);
}

// A block that is not in the tables: from before the recording. Python's allocator hands a block that it has from
// malloc on to free(), whose hook finds it as unknown as its own did.
void Recorder::count_unknown_free(const void* block) noexcept {
    if (tls.busy != 0 || !is_on()) return;
    const void* const last = tls.unknown_free;
    tls.unknown_free = last == block ? nullptr : block;
    if (last != block) unknown_frees_.fetch_add(1, std::memory_order_relaxed);
}

// The block is live again meanwhile, so that a residency snapshot names its line.
void Recorder::announce_release(const void* block, const Block& taken) noexcept {
    put_back(block, taken);
    before_release(taken.bytes);
    take(block);
    after_release();
}

void Recorder::forget_unless_large(LiveTable::Region* region, const void* block) noexcept {
    if (LiveTable::place_of(region, address_of(block)) != LiveTable::Place::large) forget_any_size(region, block);
}

Block Recorder::take_exact(const void* block) noexcept {
    const std::uintptr_t address = address_of(block);
    LiveTable::Region* const region = live_.find(address);
    Block taken;
    if (region == nullptr || take_small<false>(region, block, &taken)) return taken;
    Thread* const t = tls.thread;
    if (t == nullptr || !Lock::may_enter_fast_path(t->ticket)) [[unlikely]]
        return take_locked<false>(region, address);
    if (!lock_.enter_fast_path(t->ticket)) [[unlikely]] {
        const bool is_taken = take_shared(*t, region, address, LiveTable::place_of(region, address), &taken);
        return is_taken ? taken : take_locked<false>(region, address);
    }
    if (is_on()) [[likely]]
        taken = LiveTable::remove_any_size(region, address);
    taken.session = session_;
    if (taken.account != 0) accounts_.debit_block(taken.account, static_cast<std::int64_t>(taken.bytes));
    Lock::leave_fast_path(t->ticket);
    return taken;
}

void Recorder::put_back(const void* block, Block taken) noexcept {
    if (taken.account == 0 || is_inside()) return;
    BusyGuard busy;
    Hold hold(lock_, ticket());
    if (!is_on() || taken.session != session_) return;
    const std::uintptr_t address = address_of(block);
    if (sampled()) return put_back_sampled(address, taken);
    LiveTable::insert(live_.find(address), address, taken.bytes, taken.account,
                      [this](const Block& stale) { debit_stale(stale); });
    accounts_.restore(taken.account, static_cast<std::int64_t>(taken.bytes));
}

void Recorder::on_code_death(const void* code) noexcept {
    BusyGuard busy;
    Hold hold(lock_, ticket());
    if (!tree_.forget_code(code)) return;
    const std::uintptr_t page = 4096;
    const std::uintptr_t start = address_of(hw_code_start(code)), end = start + hw_code_bytes(code);
    for (std::uintptr_t at = start & ~(page - 1); at < end; at += page)
        code_generation(reinterpret_cast<const void*>(at)).fetch_add(1, std::memory_order_relaxed);
    request_attention();
}

void Recorder::on_marker(capture::MarkerKind kind, std::uint64_t value) noexcept {
    if (is_inside()) return;
    at_stack_guarded(
        [&](Thread& t) { markers_.append({now_ns(), value, static_cast<std::uint32_t>(kind), t.top->node()}); });
}

void Recorder::on_refused(std::size_t bytes) noexcept {
    constexpr std::uint64_t kMostMarkers = 10'000, kShortestNs = 25'000'000;
    if (is_inside() || !is_on() || only_counters_) return;
    at_stack_guarded([&](Thread& t) {
        if (++refusals_ > kMostMarkers) return;
        const std::uint64_t now = now_ns();
        markers_.append({now, bytes, static_cast<std::uint32_t>(capture::MarkerKind::out_of_memory), t.top->node()});
        if (refusals_ > 1 && now - last_refused_slice_ns_ < std::max(kShortestNs, now / 64)) return;
        last_refused_slice_ns_ = now;
        accounts_.take_instant_slice(now);
    });
}

}  // namespace hiwater
