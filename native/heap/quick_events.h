// The commonest events: a small block made or freed, in a program that allocates from one thread at a time. The lock leans to the thread,
// nothing happened since its last event that it has to take notice of, and its stack stands where it stood. What can be said without a
// call is said here, so that no register has to be saved; whatever else there is, is left to the functions of events.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "session/recorder.h"

namespace hiwater {

template <capture::Kind kKind>
[[gnu::always_inline]] inline void* Recorder::record(void* block, std::size_t bytes) noexcept {
    Thread* const t = tls.thread;
    LiveTable::Region* const region = live_.find(reinterpret_cast<std::uintptr_t>(block));
    if (tls.busy != 0 || t == nullptr || region == nullptr || !Lock::may_knock(t->ticket)) [[unlikely]]
        return record_slowly(block, bytes, kKind);
    if (!lock_.knock(t->ticket)) [[unlikely]]
        return record_beside_others<kKind>(*t, region, block, bytes);
    const void* instr = nullptr;
    if (!is_up_to_date(*t) || !(kKind == capture::Kind::python ? hw_frames_are_settled_with_gil(&t->memo, &instr)
                                                               : hw_frames_are_settled(&t->memo, &instr))) [[unlikely]]
        return record_moved_held<kKind>(*t, nullptr, block, bytes);
    if (!t->stand_at(instr)) [[unlikely]]
        return record_moved_held<kKind>(*t, instr, block, bytes);
    return book_held<kKind>(*t, region, block, bytes);
}

// The stack is known; it may have no ledger yet, and there may be more to do for the block than is done here.
template <capture::Kind kKind>
[[gnu::always_inline]] inline void* Recorder::book_held(Thread& t, LiveTable::Region* region, void* block,
                                                        std::size_t bytes) noexcept {
    constexpr auto kind = static_cast<std::uint32_t>(kKind);
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    const std::uint32_t ledger = t.top->ledger[kind];
    if (ledger == 0 || accounts_.is_folding()) [[unlikely]]
        return book_slowly_held<kKind>(t, region, block, bytes);
    if (bytes >= LiveTable::kLargeBytes) return book_large_held<kKind>(t, region, block, bytes);
    if (!LiveTable::insert_plainly(region, address, bytes, ledger)) [[unlikely]]
        return book_slowly_held<kKind>(t, region, block, bytes);
    accounts_.credit_plainly(ledger, kind, static_cast<std::int64_t>(bytes));
    t.last_block = address;
    Lock::leave_short_way(t.ticket);
    return block;
}

template <bool kSeenAgain>
[[gnu::always_inline]] inline void Recorder::forget(const void* block) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    LiveTable::Region* const region = live_.find(address);
    if (region == nullptr) return;
    Thread* const t = tls.thread;
    // Other blocks may come to where this one is, but it stays in the table it is in.
    if (!LiveTable::is_plain(region, address) || t == nullptr || !Lock::may_knock(t->ticket)) [[unlikely]]
        return kSeenAgain ? forget_unless_large(region, block) : forget_mixed(region, block);
    if (!lock_.knock(t->ticket)) [[unlikely]]
        return forget_beside_others<true>(*t, region, block);
    if (!is_on() || accounts_.is_folding()) [[unlikely]]
        return forget_held(*t, region, block);
    if (const LiveTable::PlainBlock found = LiveTable::find_plainly(region, address)) {
        const Block taken = LiveTable::remove_plainly(found);
        accounts_.debit_plainly(taken.ledger, static_cast<std::int64_t>(taken.bytes));
        if (t->last_block == address) accounts_.count_temporary(taken.ledger);
    }
    Lock::leave_short_way(t->ticket);
}

}  // namespace hiwater
