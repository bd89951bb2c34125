// The fast path of an exact recording: a small block is allocated or freed, the lock is biased to the thread, nothing
// happened since the thread's last event that it must notice, and the top frame stands where the thread has met it.
// This needs no call, so no register has to be saved. Every other case continues in a function of heap_events.cpp or
// shared_events.cpp, which it jumps to. README.md has the table of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "session/recorder.h"

namespace hiwater {

template <capture::Kind kKind>
[[gnu::always_inline]] inline void* Recorder::record_here(void* block, std::size_t bytes) noexcept {
    Thread& t = Thread::of(*tls.ready);
    LiveTable::Region* const region = live_.find(reinterpret_cast<std::uintptr_t>(block));
    if (!Lock::may_enter_fast_path(t.ticket) || region == nullptr) [[unlikely]]
        return record_locked(block, bytes, kKind);
    if (!lock_.enter_fast_path(t.ticket)) [[unlikely]]
        return record_shared<kKind>(t, region, block, bytes);
    const void* instr = nullptr;
    if (!holds(g_switches.plain_epoch, t.epoch)) [[unlikely]]
        return record_biased_unsettled<kKind>(t, region, block, bytes);
    if constexpr (kKind == capture::Kind::python) {
        if (!hw_frames_are_settled_with_gil(&t.memo, &instr)) [[unlikely]]
            return record_biased_moved<kKind>(t, nullptr, block, bytes);
    } else if (!hw_frames_are_settled_if_attached(&t.memo, &instr)) {
        return record_biased_unattached<kKind>(t, region, block, bytes);
    }
    if (!t.stand_at(instr)) [[unlikely]]
        return record_biased_moved<kKind>(t, instr, block, bytes);
    return record_biased<kKind>(t, region, block, bytes);
}

// The lock is biased, the stack is known, and no meter reads the heap's peaks. The small block of a stack with an
// account is done here.
template <capture::Kind kKind>
[[gnu::always_inline]] inline void* Recorder::record_biased(Thread& t, LiveTable::Region* region, void* block,
                                                            std::size_t bytes) noexcept {
    constexpr auto kind = static_cast<std::uint32_t>(kKind);
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    const std::uint32_t account = t.top->account[kind];
    if (account == 0) [[unlikely]]
        return record_biased_native<kKind>(t, region, block, bytes);
    if (bytes >= LiveTable::kLargeBytes) return record_biased_large<kKind>(t, region, block, bytes);
    if (!LiveTable::insert_small_fast(region, address, bytes, account)) [[unlikely]]
        return record_biased_rare<kKind>(t, region, block, bytes);
    accounts_.credit_fast(account, kind, static_cast<std::int64_t>(bytes));
    t.last_block = address;
    Lock::leave_fast_path(t.ticket);
    return block;
}

// Takes a small block out, in a stretch that has such ones alone. False, and nothing is done, where it takes more than
// this. `kFreed`: the block is freed, and not reallocated.
template <bool kFreed>
[[gnu::always_inline]] inline bool Recorder::take_small(LiveTable::Region* region, const void* block,
                                                        Block* taken) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    Thread& t = Thread::of(*tls.ready);
    // Read without the lock: other blocks may come to the same stretch, but this one stays in the table it is in.
    if (!LiveTable::has_small_only(region, address) || !Lock::may_enter_fast_path(t.ticket)) return false;
    if (!lock_.enter_fast_path(t.ticket) || !is_plain()) [[unlikely]]
        return Lock::leave_fast_path(t.ticket), false;
    const LiveTable::SmallBlock found = LiveTable::find_small_fast(region, address);
    if (!found) [[unlikely]]
        return Lock::leave_fast_path(t.ticket), false;
    *taken = LiveTable::remove_small_fast(found);
    if constexpr (!kFreed) taken->session = session_;
    accounts_.debit_fast(taken->account, static_cast<std::int64_t>(taken->bytes));
    if (kFreed && t.last_block == address) accounts_.count_temporary(taken->account);
    Lock::leave_fast_path(t.ticket);
    return true;
}

[[gnu::always_inline]] inline bool Recorder::forget_small(LiveTable::Region* region, const void* block) noexcept {
    Block taken;
    return take_small<true>(region, block, &taken);
}

}  // namespace hiwater
