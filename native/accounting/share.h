// What one thread books while several do at once, each apart from the others (lock/lock.h): its changes of ledgers, until the lock is
// somebody's alone again and accounts.h takes them in.
//
// The figures stay exact, the peak among them: together the threads may not raise the total above the open slice's mark, so meanwhile the
// mark does not move, and ledgers may learn of their changes later and in any order. Each thread draws what it may rise by from
// the room there was below the mark; what it frees, it may use again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace hiwater {

class Share {
public:
    struct alignas(64) Entry {
        std::int64_t bytes = 0, blocks = 0;  // live: more, or less than before
        std::uint64_t total_bytes = 0, total_blocks = 0;
        std::uint32_t ledger = 0;  // 0: free
        std::uint32_t temporaries = 0;
    };

    // Where a ledger's changes go; null where both its places are taken.
    Entry* entry_of(std::uint32_t ledger) noexcept {
        Entry& first = entries_[ledger % kEntries];
        return first.ledger == ledger ? &first : place_for(ledger);
    }

    // Whether the thread's sum may rise by so many bytes; draws on the common room where its own is not enough.
    bool may_rise(std::int64_t bytes, std::atomic<std::int64_t>& common) noexcept {
        if (bytes <= room_) return true;
        const std::int64_t need = bytes - room_;
        std::int64_t left = common.load(std::memory_order_relaxed), drawn = 0;
        do {
            if (left < need) return false;
            drawn = std::max(need, left / 8);  // so that others find some, and this thread need not come often
        } while (!common.compare_exchange_weak(left, left - drawn, std::memory_order_relaxed));
        room_ += drawn;
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

    std::uint64_t events() const {
        std::uint64_t made = 0, freed = 0;
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
        used_count_ = 0;
        room_ = 0;
    }

private:
    static constexpr std::uint32_t kEntries = 128;

    [[gnu::noinline]] Entry* place_for(std::uint32_t ledger) noexcept {
        for (const std::uint32_t place : {ledger % kEntries, (ledger % kEntries) ^ 1}) {
            Entry& entry = entries_[place];
            if (entry.ledger == ledger) return &entry;
            if (entry.ledger != 0) continue;
            entry.ledger = ledger;
            used_[used_count_++] = static_cast<std::uint8_t>(place);
            return &entry;
        }
        return nullptr;
    }

    std::int64_t room_ = 0;  // that is left of what was drawn
    std::uint32_t used_count_ = 0;
    std::uint8_t used_[kEntries] = {};
    Entry entries_[kEntries] = {};
};

}  // namespace hiwater
