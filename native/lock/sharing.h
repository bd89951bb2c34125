// Threads that meet at the lock again and again: who they are, and whether it pays that they share it (lock.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/stack_place.h"

namespace hiwater {

// A thread's ticket for the lock. Its memory must stay mapped for the life of the process.
struct LockTicket {
    std::atomic<std::uintptr_t> active{0};  // 0: not inside; else where the thread's stack stood as it came in
    std::uint32_t streak = 0;               // takings in a row by this thread, while the lock leans to nobody
    std::atomic<bool> may_share{false};     // it is one of those below
    bool took_part = false;                 // in the last sharing; said by SharedBooks::close()
};

// Who has to stand back before the lock is somebody's alone. Under the lock's mutex.
class Sharing {
public:
    void enlist(LockTicket& ticket) noexcept {
        if (ticket.may_share.load(std::memory_order_relaxed)) return;
        bool is_known = false;  // its memory was cleared, and is another thread's now
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

    // Sharing ended after so many events, perhaps because a thread needed the lock alone. That costs as much as some hundred of them:
    // where there were fewer, threads take turns for a while instead, twice as long each time.
    void judge(std::uint64_t events, bool by_need) noexcept {
        if (events >= kWorthwhile) {
            doubts_ = 0;
        } else if (by_need) {
            if (doubts_ < kMostDoubts) ++doubts_;
            turns_left_ = 1u << doubts_;
        }
    }
    bool pays() noexcept {
        if (turns_left_ == 0) return true;
        --turns_left_;
        return false;
    }

private:
    static constexpr std::uint32_t kMost = 64, kMostDoubts = 6;
    static constexpr std::uint64_t kWorthwhile = 1000;

    LockTicket* tickets_[kMost] = {};
    std::uint32_t count_ = 0;
    std::uint32_t doubts_ = 0, turns_left_ = 0;
};

// What threads write apart from each other while they share the lock. Called by whoever holds it alone.
class SharedBooks {
public:
    struct Episode {
        std::uint64_t events;   // since open()
        std::uint32_t threads;  // that had some
    };
    // False where the books cannot be kept apart now.
    virtual bool open() noexcept = 0;
    // Brings the books together and says of each ticket whether it took part.
    virtual Episode close(const Sharing& who) noexcept = 0;

protected:
    ~SharedBooks() = default;
};

}  // namespace hiwater
