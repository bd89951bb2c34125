// The fast path of an exact recording: a small block is allocated or freed, the lock is biased to the thread, nothing
// happened since the thread's last event that it must notice, and the top frame stands where the thread has met it.
// This needs no call, so no register has to be saved. Every other case continues in a function of heap_events.cpp or
// shared_events.cpp. README.md has the table of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "session/recorder.h"

namespace hiwater {

template <capture::Kind kKind>
[[gnu::always_inline]] inline void* Recorder::record(void* block, std::size_t bytes) noexcept {
    Thread* const t = tls.thread;
    LiveTable::Region* const region = live_.find(reinterpret_cast<std::uintptr_t>(block));
    if (tls.busy != 0 || t == nullptr || region == nullptr || !Lock::may_enter_fast_path(t->ticket)) [[unlikely]]
        return record_locked(block, bytes, kKind);
    if (!lock_.enter_fast_path(t->ticket)) [[unlikely]]
        return record_shared<kKind>(*t, region, block, bytes);
    const void* instr = nullptr;
    if (!is_up_to_date(*t) || !(kKind == capture::Kind::python ? hw_frames_are_settled_with_gil(&t->memo, &instr)
                                                               : hw_frames_are_settled(&t->memo, &instr))) [[unlikely]]
        return record_biased_moved<kKind>(*t, nullptr, block, bytes);
    if (!t->stand_at(instr)) [[unlikely]]
        return record_biased_moved<kKind>(*t, instr, block, bytes);
    return record_biased<kKind>(*t, region, block, bytes);
}

// The lock is biased and the stack is known. The small block of a stack with an account is done here.
template <capture::Kind kKind>
[[gnu::always_inline]] inline void* Recorder::record_biased(Thread& t, LiveTable::Region* region, void* block,
                                                            std::size_t bytes) noexcept {
    constexpr auto kind = static_cast<std::uint32_t>(kKind);
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    const std::uint32_t account = t.top->account[kind];
    if (account == 0 || accounts_.is_peak_read()) [[unlikely]]
        return record_biased_native<kKind>(t, region, block, bytes);
    if (bytes >= LiveTable::kLargeBytes) return record_biased_large<kKind>(t, region, block, bytes);
    if (!LiveTable::insert_small_fast(region, address, bytes, account)) [[unlikely]]
        return record_biased_rare<kKind>(t, region, block, bytes);
    accounts_.credit_fast(account, kind, static_cast<std::int64_t>(bytes));
    t.last_block = address;
    Lock::leave_fast_path(t.ticket);
    return block;
}

template <bool kFreeIsHooked>
[[gnu::always_inline]] inline void Recorder::forget(const void* block) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    LiveTable::Region* const region = live_.find(address);
    if (region == nullptr) return count_unknown_free(block);
    Thread* const t = tls.thread;
    // Read without the lock: other blocks may come to the same stretch, but this one stays in the table it is in.
    if (!LiveTable::has_small_only(region, address) || t == nullptr || !Lock::may_enter_fast_path(t->ticket))
        [[unlikely]]
        return kFreeIsHooked ? forget_unless_large(region, block) : forget_any_size(region, block);
    if (!lock_.enter_fast_path(t->ticket)) [[unlikely]]
        return forget_shared<true>(*t, region, block);
    if (!is_on() || accounts_.is_peak_read()) [[unlikely]]
        return forget_biased_rare(*t, region, block);
    if (const LiveTable::SmallBlock found = LiveTable::find_small_fast(region, address)) {
        const Block taken = LiveTable::remove_small_fast(found);
        accounts_.debit_fast(taken.account, static_cast<std::int64_t>(taken.bytes));
        if (t->last_block == address) accounts_.count_temporary(taken.account);
    } else {
        count_unknown_free(block);
    }
    Lock::leave_fast_path(t->ticket);
}

}  // namespace hiwater
