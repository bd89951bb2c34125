// The recorder's lock. Holders run a few dozen instructions, never foreign code, and take no other lock.
//
// Most programs allocate from one thread at a time, and an atomic instruction on every event would be the largest
// single cost of recording. So the lock can be biased to one thread (its "owner"). The owner takes it on a fast path,
// with plain stores:
//
//   owner:    active = 1;  compiler barrier;  biased_to == me ?  the lock is taken  :  active = 0, take the slow path
//   others:   lock the mutex;  biased_to = nobody;  membarrier();  wait until the former owner's active == 0
//
// membarrier(2) makes every running thread pass a full barrier between the two steps of the others. So either the owner
// sees that the bias is gone, or the others see that the owner is inside: Dekker's exclusion with the price moved to
// the rare side (the asymmetric barrier of D. Dice, H. Huang, M. Yang, "Asymmetric Dekker Synchronization", 2001).
// Without membarrier in the kernel the lock is never biased. A program may forbid the call while it runs (seccomp):
// from then on the lock is not biased any more.
//
// Threads that allocate at the same time would only pass the bias to each other. So the lock can also be biased to all
// of them ("shared"): each of them uses the fast path while the others use theirs, and counts in accounts of its own. A
// thread that needs the lock alone revokes the bias of all of them by the same exclusion and first merges their
// accounts: see ThreadLocalAccounting in sharing.h.
#pragma once

#include <limits.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/compare_word.h"
#include "base/raw_calls.h"
#include "lock/sharing.h"
#include "base/process.h"
#include "base/signals_blocked.h"
#include "base/thread_id.h"
#include "base/uncopied.h"

namespace hiwater {

inline void pause_processor() noexcept {  // between two reads of what another thread is to change
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // `yield` takes no time where a core runs one thread
#endif
}

// The instruction that locks it also stores which thread holds it, because a signal handler may jump away from any
// point (see Lock::abandon).
class FutexMutex {
public:
    // Returns whether another thread held it.
    bool lock() noexcept {
        std::uint64_t expected = kFree;
        const std::uint64_t mine = held_by_caller();
        if (word_.compare_exchange_strong(expected, mine, std::memory_order_acquire, std::memory_order_relaxed))
            [[likely]]
            return false;
        lock_slowly(mine);
        return true;
    }
    void unlock() noexcept {
        if ((word_.exchange(kFree, std::memory_order_release) & kWaited) != 0) [[unlikely]]
            wake(1);
    }
    bool is_held_by_caller() const noexcept {  // relaxed: the answer is yes only by a store of its own
        return (word_.load(std::memory_order_relaxed) & ~kWaited) == held_by_caller();
    }
    // For a thread that was woken, or had to wake another, and never got to do so: all waiting threads try again.
    void wake_all() noexcept { wake(INT_MAX); }
    void reset() noexcept { word_.store(kFree, std::memory_order_relaxed); }

private:
    static constexpr std::uint64_t kFree = 0, kHeld = 1,
                                   kWaited = 2;  // the low half; the high half identifies the holder
    // Control blocks of threads do not share a page, and lie less than 16 TiB apart.
    static std::uint64_t held_by_caller() noexcept { return (std::uint64_t{own_thread_id()} >> 12) << 32 | kHeld; }

    [[gnu::noinline]] void lock_slowly(std::uint64_t mine) noexcept {
        for (int spin = 0; spin < 200; ++spin) {
            std::uint64_t expected = kFree;
            if (word_.load(std::memory_order_relaxed) == kFree &&
                word_.compare_exchange_weak(expected, mine, std::memory_order_acquire, std::memory_order_relaxed))
                return;
            pause_processor();
        }
        for (std::uint64_t seen = word_.load(std::memory_order_relaxed);;) {
            if (seen == kFree) {  // other threads may still be waiting
                if (word_.compare_exchange_weak(seen, mine | kWaited, std::memory_order_acquire,
                                                std::memory_order_relaxed))
                    return;
                continue;
            }
            if ((seen & kWaited) == 0 && !word_.compare_exchange_weak(seen, seen | kWaited, std::memory_order_relaxed,
                                                                      std::memory_order_relaxed))
                continue;
            platform::wait_while(&word_, static_cast<std::uint32_t>(kHeld | kWaited));
            seen = word_.load(std::memory_order_relaxed);
        }
    }
    [[gnu::noinline]] void wake(int most) noexcept { platform::wake(&word_, most); }

    static_assert(std::endian::native ==
                  std::endian::little);  // the kernel compares the half at the address it is given
    std::atomic<std::uint64_t> word_{kFree};
};

class Lock {
public:
    // Returns whether the fast path took it; unlock() needs to know. `me` may be null.
    bool lock(LockTicket* me) noexcept {
        if (me != nullptr && biased_to_.load(std::memory_order_relaxed) == me) [[likely]] {
            if (enter_fast_path(*me)) [[likely]]
                return true;
            leave_fast_path(*me);
        }
        lock_slowly(me);
        // From here on a signal handler on this thread sees that it is inside, as on the fast path. No thread waits for
        // `active`: this one has the mutex.
        if (me != nullptr) store_stack_pointer(me->active);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        return false;
    }

    // The fast path alone, for events that have another way to get the lock. enter_fast_path() returns whether the lock
    // is biased to this thread, which then has it alone. Otherwise the thread may share the lock with others (shares())
    // and must touch nothing of theirs. Where neither holds, the thread leaves the fast path at once without the lock,
    // and may wait until the lock is shared. A thread that is inside already must not enter: a signal interrupted it,
    // and the handler allocates.
    static bool may_enter_fast_path(const LockTicket& me) noexcept { return holds(me.active, 0); }
    [[gnu::always_inline]] bool enter_fast_path(LockTicket& me) noexcept {
        store_stack_pointer(me.active);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        return holds(biased_to_, &me);
    }
    [[gnu::always_inline]] static void leave_fast_path(LockTicket& me) noexcept {
        me.active.store(0, std::memory_order_release);
    }
    [[gnu::always_inline]] bool shares(const LockTicket& me) const noexcept {
        return biased_to_.load(std::memory_order_acquire) == &all_sharers_ &&
               me.may_share.load(std::memory_order_relaxed);
    }
    // For a thread that left the fast path: if the present holder is about to share the lock, waits until it has. True:
    // this thread shares it now.
    [[gnu::noinline]] bool wait_to_share(LockTicket& me) noexcept {
        if (!me.may_share.load(std::memory_order_relaxed)) return false;
        if (is_to_be_shared_.load(std::memory_order_acquire)) {
            mutex_.lock();
            mutex_.unlock();
        } else if (!is_shared()) {
            return false;
        }
        enter_fast_path(me);
        if (shares(me)) return true;
        leave_fast_path(me);
        return false;
    }
    bool is_shared() const noexcept { return biased_to_.load(std::memory_order_relaxed) == &all_sharers_; }
    // Once, before any thread uses the lock. Without it the lock is never shared.
    void merge_accounts_with(ThreadLocalAccounting* accounting) noexcept { thread_accounting_ = accounting; }

    void unlock(LockTicket* me, bool by_fast_path) noexcept {
        if (by_fast_path) [[likely]] {
            leave_fast_path(*me);
        } else {
            if (me != nullptr) leave_fast_path(*me);
            if (is_to_be_shared_.load(std::memory_order_relaxed)) decide_bias(me);
            if (bias_returns_to_ != nullptr)
                biased_to_.store(std::exchange(bias_returns_to_, nullptr), std::memory_order_release);
            mutex_.unlock();
        }
    }

    // For a thread that will never continue what it did under the lock. The protected data stays as the thread left it.
    void abandon(LockTicket* me) noexcept {
        if (me != nullptr) leave_fast_path(*me);
        if (mutex_.is_held_by_caller()) {
            bias_returns_to_ = nullptr;
            expect_sharing(false);
            mutex_.unlock();
        }
        mutex_.wake_all();
    }

    // Once a process. Without it the lock works and is never biased. In a process with several threads the kernel takes
    // up to 20 ms, during which the lock can be used.
    void allow_bias() noexcept {
        const SignalsBlocked blocked;  // a handler that filters system calls would wait for its own thread
        lock(nullptr);
        const bool is_mine = !is_filtered_ && !std::exchange(is_registering_, true);
        unlock(nullptr, false);
        if (!is_mine) return;
        const bool is_registered = platform::prepare_barrier();
        lock(nullptr);
        is_registering_ = false;
        may_bias_ = is_registered && !is_filtered_;
        unlock(nullptr, false);
    }
    // Before the program filters its system calls: membarrier is not called from here on, because the filter may end
    // the process for it.
    void expect_filter() noexcept {
        for (bool is_called = true; is_called;) {
            lock(nullptr);
            is_filtered_ = true;
            may_bias_ = false;
            bias_returns_to_ = nullptr;
            is_called = is_registering_;
            unlock(nullptr, false);
            if (is_called) ::sched_yield();
        }
    }
    bool is_filtered() const noexcept { return is_filtered_; }
    // The filter was refused.
    void expect_no_filter() noexcept {
        lock(nullptr);
        is_filtered_ = false;
        unlock(nullptr, false);
        allow_bias();
    }

    // For the child of a fork, where the thread that held the lock may not exist.
    void reset() noexcept {
        mutex_.reset();
        biased_to_.store(nullptr, std::memory_order_relaxed);
        last_ = bias_returns_to_ = nullptr;
        alternations_ = 0;
        may_bias_ = is_registering_ = false;
        expect_sharing(false);
        sharing_.forget_all();
    }

private:
    static constexpr std::uint32_t kStreakToBias = 64, kAlternationsToShare = 16;

    [[gnu::noinline]] void lock_slowly(LockTicket* me) noexcept {
        const bool was_shared = is_shared();
        const bool had_to_wait = mutex_.lock();
        LockTicket* const owner = biased_to_.load(std::memory_order_relaxed);
        if (owner == &all_sharers_) return end_sharing(me, was_shared);
        if (owner != nullptr && owner == me) return;  // the bias returned meanwhile: no other thread can be inside
        const bool take_turns = owner != nullptr && me != nullptr && is_at_work(*owner);
        if (take_turns) {
            wait_a_turn();
            note_contention(*owner, *me);
        }
        if (owner != nullptr) revoke_bias_of(owner);
        if (me == nullptr) {
            if (may_bias_) bias_returns_to_ = owner;  // a caller without a ticket only reads: the bias stays
        } else if (may_bias_ && !take_turns) {
            count_acquisition(*me, had_to_wait);
        }
    }

    // The lock is biased to no thread. A thread that takes it many times in a row gets the bias. Threads that wait for
    // each other here many times are in contention. Python threads that take turns under the GIL do not wait for each
    // other here, so they are not. The holder of the mutex decides, so there is one decision at a time.
    void count_acquisition(LockTicket& me, bool had_to_wait) noexcept {
        LockTicket* const last = std::exchange(last_, &me);
        if (last != &me) {
            me.streak = 0;
            if (last != nullptr && had_to_wait && ++alternations_ >= kAlternationsToShare) note_contention(*last, me);
        } else if (++me.streak >= kStreakToBias) {
            me.streak = alternations_ = 0;
            biased_to_.store(&me, std::memory_order_release);  // from the next time on
        }
    }

    void note_contention(LockTicket& one, LockTicket& other) noexcept {
        alternations_ = 0;
        sharing_.enlist(one);
        sharing_.enlist(other);
        expect_sharing(true);  // decide_bias() does the rest
    }

    // After contention: from now on the threads share the lock or, where they cannot, it is biased to this one.
    void decide_bias(LockTicket* me) noexcept {
        if (!may_bias_) {
            // Every thread uses the mutex.
        } else if (thread_accounting_ != nullptr && sharing_.is_worthwhile() && thread_accounting_->begin_sharing()) {
            biased_to_.store(&all_sharers_, std::memory_order_release);
        } else if (me != nullptr) {
            biased_to_.store(me, std::memory_order_release);
        }
        expect_sharing(false);
    }

    void expect_sharing(bool is_expected) noexcept { is_to_be_shared_.store(is_expected, std::memory_order_release); }

    // Called by a thread that shared the lock and needs it alone, by a thread (`me`) that waited here while sharing
    // began and could as well have shared, or by a caller without a ticket, which only reads.
    [[gnu::noinline]] void end_sharing(LockTicket* me, bool was_shared) noexcept {
        expect_sharing(true);  // before any of the threads sees that the lock is not shared
        revoke_bias();
        sharing_.each([](const LockTicket& one) { wait_until_out(one); });
        const ThreadLocalAccounting::Episode episode = thread_accounting_->merge(sharing_);
        const bool took_part = me != nullptr && me->took_part;
        sharing_.note_episode(episode.events, me != nullptr && was_shared);
        if (me != nullptr) sharing_.enlist(*me);
        const std::uint32_t others = episode.threads - (took_part ? 1 : 0);
        expect_sharing(others > (me != nullptr ? 0u : 1u));
        if (me != nullptr && may_bias_ && !is_to_be_shared_.load(std::memory_order_relaxed))
            biased_to_.store(me, std::memory_order_release);
    }

    // Where threads cannot share, threads that allocate without pause would pass the lock to each other at every event,
    // at the price of several cache misses each time. So they take turns: the arriving thread lets the other continue
    // on its fast path for some sixty microseconds, and then takes over the bias. A thread that has released the GIL,
    // or sleeps, is not at work, and is not waited for.
    static constexpr int kChecks = 32, kTurn = 1500;

    static bool is_at_work(const LockTicket& owner) noexcept {  // relaxed: a guess
        for (int check = 0; check < kChecks; ++check) {
            if (owner.active.load(std::memory_order_relaxed) != 0) return true;
            pause_processor();
        }
        return false;
    }
    // Without reading the other's ticket: that thread needs its cache line.
    static void wait_a_turn() noexcept {
        for (int i = 0; i < kTurn; ++i) pause_processor();
    }

    [[gnu::noinline]] void revoke_bias_of(const LockTicket* owner) noexcept {
        revoke_bias();
        wait_until_out(*owner);
    }
    void revoke_bias() noexcept {
        biased_to_.store(nullptr, std::memory_order_seq_cst);
        if (!platform::pass_barrier()) [[unlikely]]
            give_up_bias();
        last_ = nullptr;
    }
    // A filter refuses the call. A thread that took the lock by its fast path just before has its store to `active`
    // still in its processor's store buffer, which is empty within a microsecond: five milliseconds later everybody
    // sees the store, and a load of the bias that was made before it has been used. Once a recording.
    void give_up_bias() noexcept {
        constexpr std::uint64_t kLongEnoughNs = 5'000'000;
        may_bias_ = false;
        const std::uint64_t begun = process::monotonic_ns();
        while (process::monotonic_ns() - begun < kLongEnoughNs) pause_processor();
    }
    // A thread is inside for a few dozen instructions, unless the kernel took it off its processor there: on a busy
    // machine for milliseconds.
    static void wait_until_out(const LockTicket& one) noexcept {
        constexpr timespec kNap{0, 50'000};
        for (int spin = 0; one.active.load(std::memory_order_acquire) != 0; ++spin) {
            if (spin > 200) {
                platform::sleep_for(kNap);
            } else if (spin > 100) {
                ::sched_yield();
            }
        }
    }

    alignas(64) std::atomic<LockTicket*> biased_to_{nullptr};
    FutexMutex mutex_;
    LockTicket* last_ = nullptr;  // this and what follows: under mutex_
    LockTicket* bias_returns_to_ = nullptr;
    std::uint32_t alternations_ = 0;  // of threads that waited for each other here, since the lock was last biased
    bool may_bias_ = false;
    bool is_registering_ = false;  // a thread registers the process for membarrier
    bool is_filtered_ = false;     // the program filters its system calls; filters are for the life of the process
    std::atomic<bool> is_to_be_shared_{
        false};  // contention was noted while this holder had the lock; read without the mutex, too
    Sharing sharing_;
    ThreadLocalAccounting* thread_accounting_ = nullptr;
    LockTicket all_sharers_;  // stands for all threads that share: a shared lock is biased to it
};

class Hold : Uncopied {
public:
    [[gnu::always_inline]] explicit Hold(Lock& lock, LockTicket* me = nullptr) noexcept
        : lock_(lock), me_(me), by_fast_path_(lock.lock(me)) {}
    [[gnu::always_inline]] ~Hold() { lock_.unlock(me_, by_fast_path_); }

private:
    Lock& lock_;
    LockTicket* me_;
    bool by_fast_path_;
};

using MutexHold = std::lock_guard<FutexMutex>;

// The same with signals blocked, for a lock that is rarely taken: no signal handler can jump out of it or wait for its
// own thread.
class UninterruptedHold {
public:
    explicit UninterruptedHold(FutexMutex& mutex) noexcept : hold_(mutex) {}

private:
    SignalsBlocked blocked_;
    MutexHold hold_;
};

}  // namespace hiwater
