// The threads that share the recorder's lock (lock.h), and whether sharing is worth its cost.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/stack_place.h"

namespace hiwater {

// A thread's ticket for the lock. Its memory must stay mapped for the life of the process.
struct LockTicket {
    std::atomic<std::uintptr_t> active{0};  // 0: not inside; else the thread's stack pointer when it entered
    std::uint32_t streak = 0;            // acquisitions in a row by this thread, while the lock is biased to no thread
    std::atomic<bool> may_share{false};  // it is in the list below; relaxed: ordered by the bias of all sharers
    bool took_part = false;              // in the last episode of sharing; set by ThreadLocalAccounting::merge()
};

// The threads whose bias must be revoked before one thread can have the lock alone. Under the lock's mutex.
class Sharing {
public:
    static constexpr std::uint32_t kMost = 64;

    void enlist(LockTicket& ticket) noexcept {
        if (ticket.may_share.load(std::memory_order_relaxed)) return;
        bool is_known = false;  // a known ticket may have been cleared and given to another thread
        each([&](const LockTicket& one) { is_known = is_known || &one == &ticket; });
        if (!is_known && count_ == kMost) return;
        if (!is_known) tickets_[count_++] = &ticket;
        ticket.may_share.store(true, std::memory_order_relaxed);
    }
    template <typename Visit>  // visit(ticket)
    void each(Visit visit) const {
        for (std::uint32_t i = 0; i < count_; ++i) visit(*tickets_[i]);
    }
    // The child of a fork has none of these threads but one.
    void forget_all() noexcept {
        each([](LockTicket& ticket) {
            ticket.may_share.store(false, std::memory_order_relaxed);
            ticket.took_part = false;
        });
        count_ = 0;
    }

    // Sharing ended after so many events; `by_need`: because a thread needed the lock alone. Ending costs as much as
    // several hundred events: after a shorter episode threads take turns for a while instead, twice as long each time.
    void note_episode(std::uint64_t events, bool by_need) noexcept {
        if (events >= kWorthwhile) {
            penalty_ = 0;
        } else if (by_need) {
            if (penalty_ < kMaxPenalty) ++penalty_;
            turns_left_ = 1u << penalty_;
        }
    }
    bool is_worthwhile() noexcept {
        if (turns_left_ == 0) return true;
        --turns_left_;
        return false;
    }

private:
    static constexpr std::uint32_t kMaxPenalty = 6;
    static constexpr std::uint64_t kWorthwhile = 1000;

    LockTicket* tickets_[kMost] = {};
    std::uint32_t count_ = 0;
    std::uint32_t penalty_ = 0, turns_left_ = 0;
};

// Thread-local accounting: what threads count on their own while they share the lock. Called by the thread that holds
// it alone.
class ThreadLocalAccounting {
public:
    struct Episode {
        std::uint64_t events;   // since begin_sharing()
        std::uint32_t threads;  // that had events
    };
    // False where threads cannot count on their own now.
    virtual bool begin_sharing() noexcept = 0;
    // Merges the threads' accounts into the common ones, and sets `took_part` of each ticket.
    virtual Episode merge(const Sharing& who) noexcept = 0;

protected:
    ~ThreadLocalAccounting() = default;
};

}  // namespace hiwater
