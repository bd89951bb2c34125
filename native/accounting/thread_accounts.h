// Thread-local accounting: the changes that one thread makes to accounts while several threads share the lock
// (lock/lock.h). When one thread has the lock alone again, accounts.h merges them.
//
// All figures stay exact, the peak included. There are two ways:
// - Threads count. Together they may not raise the total above the open slice's peak. So the peak does not move
//   meanwhile, and accounts can be updated later and in any order. Each thread takes the bytes by which it may grow
//   from a common allowance, which at first is the distance of the total from the peak. What the thread frees, it may
//   use again.
// - Threads list their events with the time of each. Where the total rises above the peak, what the peak is depends on
//   the order of all threads' events: accounts are updated in that order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace hiwater {

class ThreadAccounts {
public:
    struct alignas(64) Entry {
        std::int64_t bytes = 0, blocks = 0;  // change of live bytes and blocks
        std::uint64_t total_bytes = 0, total_blocks = 0;
        std::uint32_t account = 0;  // 0: free
        std::uint32_t temporaries = 0;
    };

    // The entry for the changes of an account; null where both its places are taken.
    Entry* entry_of(std::uint32_t account) noexcept {
        Entry& first = entries_[account % kEntries];
        return first.account == account ? &first : place_for(account);
    }

    // Whether the thread's live bytes may grow by so many; takes from the common allowance where its own is not enough.
    bool may_grow(std::int64_t bytes, std::atomic<std::int64_t>& common) noexcept {
        if (bytes <= room_) return true;
        const std::int64_t need = bytes - room_;
        std::int64_t left = common.load(std::memory_order_relaxed), taken = 0;
        do {
            if (left < need) return false;
            taken = std::max(need, left / 8);  // leaves some for others, and this thread need not come often
        } while (!common.compare_exchange_weak(left, left - taken, std::memory_order_relaxed));
        room_ += taken;
        return true;
    }

    void add(Entry& entry, std::int64_t bytes) noexcept {
        room_ -= bytes;
        entry.bytes += bytes;
        ++entry.blocks;
        entry.total_bytes += static_cast<std::uint64_t>(bytes);
        ++entry.total_blocks;
    }
    void take(Entry& entry, std::int64_t bytes) noexcept {
        room_ += bytes;
        entry.bytes -= bytes;
        --entry.blocks;
    }

    // An event of the other way. The time is read while the thread owns the block: who frees it, or gets its address
    // next, reads a later one.
    struct Event {
        std::uint64_t ns;
        std::uint32_t account;  // and, where the block was freed, the bits below
        std::uint32_t bytes;
    };
    static constexpr std::uint32_t kFreed = 1u << 31, kTemporary = 1u << 30;

    bool may_list(std::uint64_t bytes) const noexcept { return event_count_ < kMostEvents && bytes <= UINT32_MAX; }
    void list(std::uint64_t ns, std::uint32_t account, std::uint64_t bytes) noexcept {
        events_[event_count_] = {ns, account, static_cast<std::uint32_t>(bytes)};
        ++event_count_;
    }
    const Event* begin() const noexcept { return events_; }
    const Event* end() const noexcept { return events_ + event_count_; }

    std::uint64_t events() const {
        std::uint64_t made = event_count_, freed = 0;
        each([&](const Entry& entry) {
            made += entry.total_blocks;
            freed += entry.total_blocks - static_cast<std::uint64_t>(entry.blocks);
        });
        return made + freed;
    }
    template <typename Visit>  // visit(entry)
    void each(Visit visit) const {
        for (std::uint32_t i = 0; i < used_count_; ++i) visit(entries_[used_[i]]);
    }
    void clear() noexcept {
        for (std::uint32_t i = 0; i < used_count_; ++i) entries_[used_[i]] = {};
        used_count_ = event_count_ = 0;
        room_ = 0;
    }

private:
    static constexpr std::uint32_t kEntries = 128, kMostEvents = 8192;

    [[gnu::noinline]] Entry* place_for(std::uint32_t account) noexcept {
        for (const std::uint32_t place : {account % kEntries, (account % kEntries) ^ 1}) {
            Entry& entry = entries_[place];
            if (entry.account == account) return &entry;
            if (entry.account != 0) continue;
            entry.account = account;
            used_[used_count_++] = static_cast<std::uint8_t>(place);
            return &entry;
        }
        return nullptr;
    }

    std::int64_t room_ = 0;  // what is left of the allowance that this thread took
    std::uint32_t used_count_ = 0, event_count_ = 0;
    std::uint8_t used_[kEntries] = {};
    Entry entries_[kEntries] = {};
    Event events_[kMostEvents];
};

// Goes over the events that threads listed, in the order of time.
class EventsInOrder {
public:
    static constexpr std::uint32_t kMostThreads = 64;

    void add(const ThreadAccounts& thread) noexcept {
        if (thread.begin() == thread.end()) return;
        rests_[count_++] = {thread.begin(), thread.end()};
        std::push_heap(rests_, rests_ + count_, is_later);
    }
    template <typename Visit>  // visit(event)
    void each(Visit visit) {
        while (count_ != 0) {
            std::pop_heap(rests_, rests_ + count_, is_later);
            Rest& first = rests_[count_ - 1];
            visit(*first.next);
            if (++first.next == first.end) {
                --count_;
            } else {
                std::push_heap(rests_, rests_ + count_, is_later);
            }
        }
    }

private:
    struct Rest {
        const ThreadAccounts::Event *next, *end;
    };
    static constexpr auto is_later = [](const Rest& one, const Rest& other) { return one.next->ns > other.next->ns; };

    Rest rests_[kMostThreads];
    std::uint32_t count_ = 0;
};

}  // namespace hiwater
