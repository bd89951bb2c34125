// The recorder's lock. Holders run a few dozen instructions, never foreign code, and take no other lock.
//
// Most programs allocate from one thread at a time, and an atomic instruction on every event would be the largest single cost of
// recording. So the lock can lean to one thread (its "owner"), which then takes it with plain stores:
//
//   owner:    active = 1;  compiler barrier;  leans_to == me ?  it is ours  :  active = 0, go the slow way
//   others:   hold the mutex;  leans_to = nobody;  membarrier();  wait until the former owner's active == 0
//
// membarrier(2) makes every running thread pass a full barrier between the two stores of the others, so either the owner sees that
// the lock leans no more, or the others see that it is inside: Dekker's exclusion with the price moved to the rare side (the
// asymmetric barrier of D. Dice, H. Huang, M. Yang, "Asymmetric Dekker Synchronization", 2001). Where the kernel has no
// membarrier the lock never leans. A program may forbid the call while it runs (seccomp): then the lock leans no more.
//
// Threads that allocate at once would only hand it to and fro. So it can also lean to all of them: each is then in its short way while
// the others are in theirs, and writes in books of its own. Whoever needs the lock alone makes all of them stand back, by the same
// exclusion, and has the books brought together first: see SharedBooks and sharing.h.
#pragma once

#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <utility>

#include "lock/sharing.h"
#include "base/signals_blocked.h"

namespace hiwater {

// Its word says which thread has it in the same instruction that takes it: a signal handler may jump away from any point (see Lock::leave_for_good).
class FutexMutex {
public:
    // Returns whether somebody else had it.
    bool lock() noexcept {
        std::uint64_t expected = kFree;
        const std::uint64_t mine = held_by_caller();
        if (word_.compare_exchange_strong(expected, mine, std::memory_order_acquire, std::memory_order_relaxed)) [[likely]]
            return false;
        lock_slowly(mine);
        return true;
    }
    void unlock() noexcept {
        if ((word_.exchange(kFree, std::memory_order_release) & kWaited) != 0) [[unlikely]]
            wake(1);
    }
    bool is_held_by_caller() const noexcept { return (word_.load(std::memory_order_relaxed) & ~kWaited) == held_by_caller(); }
    // For one that was woken, or was to wake another, and does neither: those that wait look for themselves.
    void wake_all() noexcept { wake(INT_MAX); }
    void reset() noexcept { word_.store(kFree, std::memory_order_relaxed); }

private:
    static constexpr std::uint64_t kFree = 0, kHeld = 1, kWaited = 2;  // the low half; the high half is whose
    // Control blocks of threads do not share a page, and lie less than 16 TiB apart.
    static std::uint64_t held_by_caller() noexcept { return (static_cast<std::uint64_t>(::pthread_self()) >> 12) << 32 | kHeld; }

    [[gnu::noinline]] void lock_slowly(std::uint64_t mine) noexcept {
        for (int spin = 0; spin < 200; ++spin) {
            std::uint64_t expected = kFree;
            if (word_.load(std::memory_order_relaxed) == kFree &&
                word_.compare_exchange_weak(expected, mine, std::memory_order_acquire, std::memory_order_relaxed))
                return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        for (std::uint64_t seen = word_.load(std::memory_order_relaxed);;) {
            if (seen == kFree) {  // others may wait still
                if (word_.compare_exchange_weak(seen, mine | kWaited, std::memory_order_acquire, std::memory_order_relaxed)) return;
                continue;
            }
            if ((seen & kWaited) == 0 &&
                !word_.compare_exchange_weak(seen, seen | kWaited, std::memory_order_relaxed, std::memory_order_relaxed))
                continue;
            ::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, static_cast<std::uint32_t>(kHeld | kWaited), nullptr, nullptr, 0);
            seen = word_.load(std::memory_order_relaxed);
        }
    }
    [[gnu::noinline]] void wake(int most) noexcept { ::syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, most, nullptr, nullptr, 0); }

    static_assert(std::endian::native == std::endian::little);  // the kernel compares the half that its pointer names
    std::atomic<std::uint64_t> word_{kFree};
};

class Lock {
public:
    // Returns whether it was taken the short way; unlock() must be told. `me` may be null.
    bool lock(LockTicket* me) noexcept {
        if (me != nullptr && leans_to_.load(std::memory_order_relaxed) == me) [[likely]] {
            if (knock(*me)) [[likely]]
                return true;
            leave_short_way(*me);
        }
        lock_slowly(me);
        // From here on a signal's handler on this thread finds it inside, as in the short way. Nobody waits for it: this thread has the mutex.
        if (me != nullptr) store_stack_pointer(me->active);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        return false;
    }

    // The short way alone, for an event that has another. A thread knocks, and has the lock alone where that is so; or it shares the
    // lock with others, and may touch nothing that is theirs. Where it does neither it leaves at once, holding nothing, and may
    // wait for the lock to be shared. Nobody knocks who is inside already: a signal came in between, and its handler allocates.
    static bool may_knock(const LockTicket& me) noexcept { return me.active.load(std::memory_order_relaxed) == 0; }
    [[gnu::always_inline]] bool knock(LockTicket& me) noexcept {
        store_stack_pointer(me.active);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        return leans_to_.load(std::memory_order_acquire) == &me;
    }
    [[gnu::always_inline]] static void leave_short_way(LockTicket& me) noexcept { me.active.store(0, std::memory_order_release); }
    [[gnu::always_inline]] bool shares(const LockTicket& me) const noexcept {
        return leans_to_.load(std::memory_order_acquire) == &everybody_ && me.may_share.load(std::memory_order_relaxed);
    }
    // For a thread that left: whoever has the lock alone, and will let it be shared, is out in a moment. True: this one is in.
    [[gnu::noinline]] bool waits_to_share(LockTicket& me) noexcept {
        if (!me.may_share.load(std::memory_order_relaxed)) return false;
        if (is_to_be_shared_.load(std::memory_order_acquire)) {
            mutex_.lock();
            mutex_.unlock();
        } else if (!is_shared()) {
            return false;
        }
        knock(me);
        if (shares(me)) return true;
        leave_short_way(me);
        return false;
    }
    bool is_shared() const noexcept { return leans_to_.load(std::memory_order_relaxed) == &everybody_; }
    // Once, before any thread comes. Without books the lock is never shared.
    void keep_books_with(SharedBooks* books) noexcept { books_ = books; }

    void unlock(LockTicket* me, bool short_way) noexcept {
        if (short_way) [[likely]] {
            leave_short_way(*me);
        } else {
            if (me != nullptr) leave_short_way(*me);
            if (is_to_be_shared_.load(std::memory_order_relaxed)) pass_on(me);
            if (leans_back_to_ != nullptr) leans_to_.store(std::exchange(leans_back_to_, nullptr), std::memory_order_release);
            mutex_.unlock();
        }
    }

    // For a thread that does not come back to what it did here. What the lock protects is as it was left.
    void leave_for_good(LockTicket* me) noexcept {
        if (me != nullptr) leave_short_way(*me);
        if (mutex_.is_held_by_caller()) {
            leans_back_to_ = nullptr;
            expect_sharing(false);
            mutex_.unlock();
        }
        mutex_.wake_all();
    }

    // Once a process; without it the lock works and never leans.
    void allow_leaning() noexcept {
        may_lean_ = !is_filtered_ && ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
    }
    // Before the program filters its system calls: membarrier is not called from here on, as the filter may end the process for it.
    void expect_filter() noexcept {
        lock(nullptr);
        is_filtered_ = true;
        may_lean_ = false;
        leans_back_to_ = nullptr;
        unlock(nullptr, false);
    }
    // The filter was refused.
    void expect_no_filter() noexcept {
        lock(nullptr);
        is_filtered_ = false;
        allow_leaning();
        unlock(nullptr, false);
    }

    // For the child of a fork, where the holder's thread may not exist.
    void reset() noexcept {
        mutex_.reset();
        leans_to_.store(nullptr, std::memory_order_relaxed);
        last_ = leans_back_to_ = nullptr;
        alternations_ = 0;
        may_lean_ = false;
        expect_sharing(false);
        sharing_.forget_all();
    }

private:
    static constexpr std::uint32_t kStreakToLean = 64, kAlternationsToMeet = 16;

    [[gnu::noinline]] void lock_slowly(LockTicket* me) noexcept {
        const bool was_shared = is_shared();
        const bool had_to_wait = mutex_.lock();
        LockTicket* const owner = leans_to_.load(std::memory_order_relaxed);
        if (owner == &everybody_) return end_sharing(me, was_shared);
        if (owner != nullptr && owner == me) return;  // it leant back meanwhile: nobody else can be in
        const bool take_turns = owner != nullptr && me != nullptr && is_at_work(*owner);
        if (take_turns) {
            wait_a_turn();
            meet(*owner, *me);
        }
        if (owner != nullptr) stand_upright(owner);
        if (me == nullptr) {
            if (may_lean_) leans_back_to_ = owner;  // who only looks changes nothing
        } else if (may_lean_ && !take_turns) {
            count_taking(*me, had_to_wait);
        }
    }

    // Nobody has the lock lean to him: whoever takes it again and again will, and threads that find each other here again and again have
    // met. Threads of Python that only take turns, as the GIL has them do, have not. Whoever holds the mutex decides, so there is one
    // decision at a time.
    void count_taking(LockTicket& me, bool had_to_wait) noexcept {
        LockTicket* const last = std::exchange(last_, &me);
        if (last != &me) {
            me.streak = 0;
            if (last != nullptr && had_to_wait && ++alternations_ >= kAlternationsToMeet) meet(*last, me);
        } else if (++me.streak >= kStreakToLean) {
            me.streak = alternations_ = 0;
            leans_to_.store(&me, std::memory_order_release);  // from the next time on
        }
    }

    void meet(LockTicket& one, LockTicket& other) noexcept {
        alternations_ = 0;
        sharing_.enlist(one);
        sharing_.enlist(other);
        expect_sharing(true);  // pass_on() says how it goes on
    }

    // Threads have met here: from now on they share the lock, or where they cannot, this one has its turn.
    void pass_on(LockTicket* me) noexcept {
        if (!may_lean_) {
            // The mutex it is, for everybody.
        } else if (books_ != nullptr && sharing_.pays() && books_->open()) {
            leans_to_.store(&everybody_, std::memory_order_release);
        } else if (me != nullptr) {
            leans_to_.store(me, std::memory_order_release);
        }
        expect_sharing(false);
    }

    void expect_sharing(bool is_expected) noexcept { is_to_be_shared_.store(is_expected, std::memory_order_release); }

    // By a thread that shared the lock and needs it alone; by one (`me`) that waited here while sharing began, and might as well
    // have shared; or by somebody who has no ticket and only looks.
    [[gnu::noinline]] void end_sharing(LockTicket* me, bool was_shared) noexcept {
        expect_sharing(true);  // before any of them finds that it is not shared
        stand_back();
        sharing_.each([](const LockTicket& one) { wait_until_out(one); });
        const SharedBooks::Episode episode = books_->close(sharing_);
        const bool took_part = me != nullptr && me->took_part;
        sharing_.judge(episode.events, me != nullptr && was_shared);
        if (me != nullptr) sharing_.enlist(*me);
        const std::uint32_t others = episode.threads - (took_part ? 1 : 0);
        expect_sharing(others > (me != nullptr ? 0u : 1u));
        if (me != nullptr && may_lean_ && !is_to_be_shared_.load(std::memory_order_relaxed))
            leans_to_.store(me, std::memory_order_release);
    }

    // Where threads cannot share, those that allocate without pause would hand the lock to and fro at every event, at the price of
    // several cache misses each time. So they take turns: the one that comes lets the other go on in its short way for some sixty
    // microseconds, and then has it lean to itself. A thread that has let go of the GIL, or sleeps, is not at work, and is not waited for.
    static constexpr int kLooks = 32, kTurn = 1500;

    static bool is_at_work(const LockTicket& owner) noexcept {
        for (int look = 0; look < kLooks; ++look) {
            if (owner.active.load(std::memory_order_relaxed) != 0) return true;
            pause();
        }
        return false;
    }
    // Without a look at the other's ticket, whose line of cache it needs.
    static void wait_a_turn() noexcept {
        for (int i = 0; i < kTurn; ++i) pause();
    }
    static void pause() noexcept {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    [[gnu::noinline]] void stand_upright(const LockTicket* owner) noexcept {
        stand_back();
        wait_until_out(*owner);
    }
    void stand_back() noexcept {
        leans_to_.store(nullptr, std::memory_order_seq_cst);
        if (::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0) [[unlikely]]
            lean_no_more();
        last_ = nullptr;
    }
    // A filter refuses the call. A thread that took the lock by its fast path just before has its store to `active` still in its
    // processor's store buffer, which is empty within a microsecond: five milliseconds later everybody sees the store. Once a recording.
    void lean_no_more() noexcept {
        constexpr std::int64_t kLongEnoughNs = 5'000'000;
        may_lean_ = false;
        const std::int64_t begun = clock_ns();
        while (clock_ns() - begun < kLongEnoughNs) pause();
    }
    static std::int64_t clock_ns() noexcept {
        timespec now{};
        ::clock_gettime(CLOCK_MONOTONIC, &now);
        return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
    }
    // A thread is inside for a few dozen instructions, unless it lost its processor there.
    static void wait_until_out(const LockTicket& one) noexcept {
        for (int spin = 0; one.active.load(std::memory_order_acquire) != 0; ++spin) {
            if (spin > 100) ::sched_yield();
        }
    }

    alignas(64) std::atomic<LockTicket*> leans_to_{nullptr};
    FutexMutex mutex_;
    LockTicket* last_ = nullptr;  // this and what follows: under mutex_
    LockTicket* leans_back_to_ = nullptr;
    std::uint32_t alternations_ = 0;  // of threads that waited for each other here, since one had it lean
    bool may_lean_ = false;
    bool is_filtered_ = false;                  // the program filters its system calls; filters are for the life of the process
    std::atomic<bool> is_to_be_shared_{false};  // threads met at this taking; read without the mutex, too
    Sharing sharing_;
    SharedBooks* books_ = nullptr;
    LockTicket everybody_;  // whom a lock that is shared leans to
};

class Hold {
public:
    [[gnu::always_inline]] explicit Hold(Lock& lock, LockTicket* me = nullptr) noexcept
        : lock_(lock), me_(me), short_way_(lock.lock(me)) {}
    [[gnu::always_inline]] ~Hold() { lock_.unlock(me_, short_way_); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

private:
    Lock& lock_;
    LockTicket* me_;
    bool short_way_;
};

class MutexHold {
public:
    explicit MutexHold(FutexMutex& mutex) noexcept : mutex_(mutex) { mutex_.lock(); }
    ~MutexHold() { mutex_.unlock(); }
    MutexHold(const MutexHold&) = delete;
    MutexHold& operator=(const MutexHold&) = delete;

private:
    FutexMutex& mutex_;
};

// The same with signals blocked, for a lock that is rarely taken: no signal handler can jump out of it or wait for its own thread.
class UninterruptedHold {
public:
    explicit UninterruptedHold(FutexMutex& mutex) noexcept : hold_(mutex) {}

private:
    SignalsBlocked blocked_;
    MutexHold hold_;
};

}  // namespace hiwater
