#include "lock/lock.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "base/pages.h"
#include "heap/live_table.h"
#include "support.h"

namespace hiwater::tests {

namespace {

// What a lock protects. Not atomic: a thread sanitizer and the sum at the end both see when two threads are in at once.
struct Guarded {
    std::uint64_t count = 0;
    std::uint64_t twice = 0;

    void visit() {
        const std::uint64_t before = count;
        // Long enough that a rival who is let in is likely to come before the stores.
        for (int i = 0; i < 8; ++i) asm volatile("" ::: "memory");
        count = before + 1;
        twice = 2 * count;
    }
};

bool takes_short_way(Lock& lock, LockTicket& me) {
    if (!Lock::may_enter_fast_path(me)) return false;
    if (lock.enter_fast_path(me)) return true;
    Lock::leave_fast_path(me);
    return false;
}

bool becomes_biased(Lock& lock, LockTicket& me) {
    for (int i = 0; i < 1000; ++i) {
        const bool by_fast_path = lock.lock(&me);
        lock.unlock(&me, by_fast_path);
        if (by_fast_path) return true;
    }
    return false;
}

void wait_a_little(Trace& trace) {
    if (trace.one_in(4)) std::this_thread::sleep_for(std::chrono::microseconds(trace.below(50)));
    if (trace.one_in(4)) std::this_thread::yield();
}

// Long runs bias the lock to this thread; the pauses let it be biased to others.
std::uint64_t hammer(Lock& lock, LockTicket* ticket, Guarded& guarded, std::uint64_t seed, int bursts) {
    Trace trace(seed);
    std::uint64_t taken = 0;
    for (int burst = 0; burst < bursts; ++burst) {
        const std::uint64_t run = trace.one_in(2) ? 1 + trace.below(5) : 100 + trace.below(300);
        for (std::uint64_t i = 0; i < run; ++i) {
            if (ticket != nullptr && takes_short_way(lock, *ticket)) {
                guarded.visit();
                Lock::leave_fast_path(*ticket);
                continue;
            }
            Hold hold(lock, ticket);
            guarded.visit();
        }
        taken += run;
        wait_a_little(trace);
    }
    return taken;
}

std::uint64_t hammer_with(Lock& lock, Guarded& guarded, int leaning, int upright, std::uint64_t seed, int bursts) {
    std::vector<LockTicket> tickets(static_cast<std::size_t>(leaning));
    std::vector<std::uint64_t> taken(static_cast<std::size_t>(leaning + upright));
    in_threads(taken.size(), [&](std::size_t i) {
        LockTicket* ticket = i < tickets.size() ? &tickets[i] : nullptr;
        taken[i] = hammer(lock, ticket, guarded, seed * 1000 + i, bursts);
    });
    std::uint64_t sum = 0;
    for (const std::uint64_t n : taken) sum += n;
    return sum;
}

// What one thread writes on its own while it shares the lock, not atomic either.
struct Local {
    alignas(64) LockTicket ticket;  // first: the ticket is all that close() is told of
    std::uint64_t events = 0;
};

struct LocalCounts final : ThreadLocalAccounting {
    Guarded* guarded;
    bool is_allowed = true;
    std::uint64_t gathered = 0;

    bool begin_sharing() noexcept override { return is_allowed; }
    Episode merge(const Sharing& who) noexcept override {
        guarded->visit();  // no other thread may be inside: neither alone nor sharing
        --guarded->count;
        guarded->twice = 2 * guarded->count;
        Episode episode{0, 0};
        who.each([&](LockTicket& ticket) {
            std::uint64_t& events = reinterpret_cast<Local&>(ticket).events;
            ticket.took_part = events != 0;
            episode.events += events;
            episode.threads += events != 0 ? 1 : 0;
            events = 0;
        });
        gathered += episode.events;
        return episode;
    }
};

bool visit_by_fast_path(Lock& lock, Local& local, Guarded& guarded, std::uint64_t& alone) {
    if (lock.enter_fast_path(local.ticket)) {
        guarded.visit();
        ++alone;
    } else {
        if (!lock.shares(local.ticket)) {
            Lock::leave_fast_path(local.ticket);
            if (!lock.wait_to_share(local.ticket)) return false;
        }
        ++local.events;
    }
    Lock::leave_fast_path(local.ticket);
    return true;
}

// Returns how many visits were made alone.
std::uint64_t hammer_sharing(Lock& lock, Local& local, Guarded& guarded, std::uint64_t seed, int visits,
                             std::uint64_t alone_one_in) {
    Trace trace(seed);
    std::uint64_t alone = 0;
    for (int i = 0; i < visits; ++i) {
        if (!trace.one_in(alone_one_in) && visit_by_fast_path(lock, local, guarded, alone)) continue;
        Hold hold(lock, &local.ticket);
        guarded.visit();
        ++alone;
    }
    return alone;
}

// Some threads and a reader at one lock. Returns how many visits were made while sharing.
std::uint64_t share_for_a_while(Trace& trace) {
    Lock lock;
    Guarded guarded;
    LocalCounts counts;
    counts.guarded = &guarded;
    lock.allow_bias();
    lock.merge_accounts_with(&counts);
    constexpr int kVisits = 60'000;
    const std::size_t count = 2 + trace.below(4);
    const std::uint64_t alone_one_in = trace.one_in(2) ? 5000 : 50;
    std::vector<Local> aparts(count);
    std::vector<std::uint64_t> alone(count);
    std::atomic<bool> done{false};
    std::uint64_t sum = 0;
    std::thread onlooker([&] {
        for (; !done.load(); ++sum) {
            {
                Hold hold(lock);
                guarded.visit();
            }
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    });
    in_threads(count, [&](std::size_t i) {
        alone[i] = hammer_sharing(lock, aparts[i], guarded, trace.seed() * 100 + i, kVisits, alone_one_in);
    });
    done.store(true);
    onlooker.join();
    const std::uint64_t reads = sum;
    {
        Hold hold(lock);  // merges what is still local
    }
    for (const std::uint64_t n : alone) sum += n;
    CHECK(guarded.count == sum);
    CHECK(guarded.twice == 2 * sum);
    CHECK(counts.gathered + sum == count * kVisits + reads);
    return counts.gathered;
}

// For the calling thread and those that it makes: a barrier is refused, as in a program that filters its system calls;
// to ask for them is not.
bool refuse_membarrier() {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{sizeof program / sizeof program[0], program};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

bool membarrier_works() { return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0; }

}  // namespace

TEST_CASE("a signal for a thread alone comes as soon as its mask is restored") {
    static thread_local int came;
    const auto handler = ::signal(SIGUSR2, [](int) { ++came; });
    std::thread([] {
        const auto begun = std::chrono::steady_clock::now();
        for (int sent = 1; sent <= 50; ++sent) {
            {
                const SignalsBlocked blocked;
                ::pthread_kill(::pthread_self(), SIGUSR2);
                CHECK(came == sent - 1);
            }
            CHECK(came == sent);
        }
        CHECK(std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(500));  // a second, if it waited
    }).join();
    ::signal(SIGUSR2, handler);
}

TEST_SUITE_BEGIN("threads");

TEST_CASE("a futex mutex lets one thread in at a time") {
    FutexMutex mutex;
    Guarded guarded;
    in_threads(4, [&](std::size_t) {
        for (int i = 0; i < 20'000; ++i) {
            MutexHold hold(mutex);
            guarded.visit();
        }
    });
    CHECK(guarded.count == 80'000);
}

TEST_CASE("a futex mutex that is held for long puts the others to sleep and wakes them") {
    FutexMutex mutex;
    Guarded guarded;
    std::vector<std::thread> threads;
    {
        MutexHold hold(mutex);
        for (int t = 0; t < 3; ++t)
            threads.emplace_back([&] {
                MutexHold mine(mutex);
                guarded.visit();
            });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK(guarded.count == 0);
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(guarded.count == 3);
}

TEST_CASE("a lock is biased to a thread that takes it alone, and the bias is revoked for another") {
    if (!membarrier_works()) {
        MESSAGE("this kernel has no membarrier: the lock is never biased");
        return;
    }
    Lock lock;
    LockTicket first, second;
    lock.allow_bias();
    int takings = 0;
    for (bool by_fast_path = false; !by_fast_path; ++takings) {
        REQUIRE(takings < 1000);
        by_fast_path = lock.lock(&first);
        lock.unlock(&first, by_fast_path);
    }
    CHECK(takings > 10);
    CHECK(takes_short_way(lock, first));
    CHECK_FALSE(takes_short_way(lock, first));  // as a signal's handler would that comes in between
    Lock::leave_fast_path(first);
    CHECK_FALSE(takes_short_way(lock, second));
    CHECK_FALSE(lock.lock(&second));
    lock.unlock(&second, false);
    CHECK_FALSE(takes_short_way(lock, first));
    CHECK_FALSE(lock.lock(&first));
    lock.unlock(&first, false);
}

TEST_CASE("a lock is not biased unless allowed, nor after a reset, nor to a thread without a ticket") {
    Lock lock;
    LockTicket ticket;
    const auto leans_after = [&](LockTicket* me) {
        bool leant = false;
        for (int i = 0; i < 1000; ++i) {
            const bool by_fast_path = lock.lock(me);
            lock.unlock(me, by_fast_path);
            leant = leant || by_fast_path;
        }
        return leant;
    };
    CHECK_FALSE(leans_after(&ticket));
    lock.allow_bias();
    CHECK_FALSE(leans_after(nullptr));
    CHECK(leans_after(&ticket) == membarrier_works());
    lock.reset();
    CHECK_FALSE(leans_after(&ticket));
}

TEST_CASE("a reset frees a lock whose holder is gone") {
    Lock lock;
    CHECK_FALSE(lock.lock(nullptr));
    lock.reset();
    CHECK_FALSE(lock.lock(nullptr));  // would wait for ever
    lock.unlock(nullptr, false);
}

TEST_CASE("many threads, with and without a bias: one at a time") {
    for_seeds(6, [](Trace& trace) {
        Lock lock;
        Guarded guarded;
        if (!trace.one_in(4)) lock.allow_bias();
        const int leaning = 1 + static_cast<int>(trace.below(5)), upright = static_cast<int>(trace.below(3));
        const std::uint64_t taken = hammer_with(lock, guarded, leaning, upright, trace.seed(), 60);
        CHECK(guarded.count == taken);
        CHECK(guarded.twice == 2 * taken);
    });
}

TEST_CASE("threads that share a lock write on their own, and a thread that needs it alone has it alone") {
    std::uint64_t gathered = 0;
    for_seeds(6, [&](Trace& trace) { gathered += share_for_a_while(trace); });
    if (!membarrier_works() || is_slow_machine()) return;
    // Where the processors are busy with other things, threads may not have met.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (std::uint64_t seed = 100; gathered == 0 && std::chrono::steady_clock::now() < until; ++seed) {
        Trace trace(seed);
        gathered += share_for_a_while(trace);
    }
    CHECK(gathered > 0);
}

TEST_CASE("a lock is not shared where threads cannot count on their own, nor by a thread without contention") {
    Lock lock;
    Guarded guarded;
    LocalCounts counts;
    counts.guarded = &guarded;
    counts.is_allowed = false;
    lock.allow_bias();
    lock.merge_accounts_with(&counts);
    Local aparts[2];
    std::thread other([&] { hammer_sharing(lock, aparts[1], guarded, 2, 50'000, 100); });
    hammer_sharing(lock, aparts[0], guarded, 1, 50'000, 100);
    other.join();
    CHECK(counts.gathered == 0);
    CHECK_FALSE(lock.is_shared());
    Local third;
    CHECK_FALSE(lock.enter_fast_path(third.ticket));
    CHECK_FALSE(lock.shares(third.ticket));
    Lock::leave_fast_path(third.ticket);
    CHECK_FALSE(lock.wait_to_share(third.ticket));
}

TEST_CASE("sharing that ends too soon is tried ever less often") {
    Sharing sharing;
    const auto turns = [&] {
        int n = 0;
        while (!sharing.is_worthwhile()) ++n;
        return n;
    };
    CHECK(turns() == 0);
    int before = 0;
    for (int i = 0; i < 10; ++i) {
        sharing.note_episode(10, true);
        const int now = turns();
        CHECK(now >= before);
        CHECK(now <= 64);
        before = now;
    }
    CHECK(before == 64);
    sharing.note_episode(10, false);  // an onlooker ended it
    CHECK(turns() == 0);
    sharing.note_episode(1'000'000, true);
    sharing.note_episode(10, true);
    CHECK(turns() == 2);
}

TEST_CASE(
    "the lock is taken from the thread it is biased to, thousands of times, and always after that thread has left") {
    Lock lock;
    LockTicket ticket;
    Guarded guarded;
    lock.allow_bias();
    std::atomic<bool> done{false};
    std::uint64_t owners = 0, rivals = 0;
    std::thread owner([&] {
        while (!done.load(std::memory_order_relaxed)) {
            Hold hold(lock, &ticket);
            guarded.visit();
            ++owners;
        }
    });
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
    for (; std::chrono::steady_clock::now() < until; ++rivals) {
        {
            Hold hold(lock);
            guarded.visit();
        }
        for (int i = 0; i < 3000; ++i) asm volatile("");  // long enough for the lock to be biased again
    }
    done.store(true);
    owner.join();
    CHECK(guarded.count == owners + rivals);
}

TEST_CASE(
    "a lock whose membarrier is refused while it is biased lets one thread in at a time, and is not biased any more") {
    std::thread([] {
        constexpr int kRounds = 40;
        Lock lock;
        LockTicket ticket;
        Guarded guarded;
        std::uint64_t owners = 0, rivals = 0;
        bool is_refused = false;
        for (int round = 0; round < kRounds; ++round) {
            lock.allow_bias();
            std::atomic<bool> done{false};
            std::atomic<std::uint64_t> begun{0};
            std::thread owner([&] {
                while (!done.load(std::memory_order_relaxed)) {
                    Hold hold(lock, &ticket);
                    guarded.visit();
                    ++owners;
                    begun.store(owners, std::memory_order_relaxed);
                }
            });
            for (const std::uint64_t from = begun.load(); begun.load() < from + 1000;) std::this_thread::yield();
            if (!is_refused) is_refused = refuse_membarrier();
            for (int i = 0; i < 500; ++i, ++rivals) {
                Hold hold(lock);
                guarded.visit();
            }
            done.store(true);
            owner.join();
            if (is_refused) CHECK_FALSE(takes_short_way(lock, ticket));
        }
        if (!is_refused) MESSAGE("this kernel has no filters of system calls");
        CHECK(guarded.count == owners + rivals);
    }).join();
}

TEST_CASE("a lock that expects a filter of system calls calls no membarrier, until the filter is refused") {
    Lock lock;
    LockTicket ticket;
    lock.allow_bias();
    CHECK(becomes_biased(lock, ticket) == membarrier_works());
    lock.expect_filter();
    CHECK_FALSE(becomes_biased(lock, ticket));
    lock.allow_bias();  // another recording begins
    CHECK_FALSE(becomes_biased(lock, ticket));
    lock.expect_no_filter();
    CHECK(becomes_biased(lock, ticket) == membarrier_works());
}

TEST_CASE("filters of system calls that come and go while other threads allow the bias and use the lock") {
    Lock lock;
    Guarded guarded;
    std::atomic<bool> done{false};
    LockTicket tickets[2];  // the lock may be biased to one of them when its thread has ended
    std::uint64_t visits[2] = {};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t)
        threads.emplace_back([&, t] {
            while (!done.load()) {
                Hold hold(lock, &tickets[t]);
                guarded.visit();
                ++visits[t];
            }
        });
    threads.emplace_back([&] {
        while (!done.load()) lock.allow_bias();
    });
    for (int i = 0; i < 300; ++i) {
        lock.expect_filter();
        lock.expect_no_filter();
    }
    done.store(true);
    for (std::thread& thread : threads) thread.join();
    CHECK(guarded.count == visits[0] + visits[1]);
    // A registration that was under way is at its end, whoever began it.
    LockTicket ticket;
    CHECK(becomes_biased(lock, ticket) == membarrier_works());
}

TEST_CASE("threads that end while the lock is biased to them, and tickets used again") {
    // As the recorder does: a ticket's page stays mapped, is cleared, and goes to the next thread.
    Lock lock;
    Guarded guarded;
    lock.allow_bias();
    auto* pages = static_cast<char*>(map_pages(2 * kPage));
    REQUIRE(pages != nullptr);
    std::atomic<bool> done{false};
    std::uint64_t others = 0;
    std::thread rival([&] {
        while (!done.load()) {
            {
                Hold hold(lock);
                guarded.visit();
                ++others;
            }
            std::this_thread::yield();  // under valgrind, which runs one thread at a time, nobody else would have a
                                        // turn
        }
    });
    std::uint64_t taken = 0;
    for (int round = 0; round < 200; ++round) {
        auto* ticket = reinterpret_cast<LockTicket*>(pages + round % 2 * kPage);
        ::madvise(ticket, kPage, MADV_DONTNEED);
        std::thread([&] {
            for (int i = 0; i < 300; ++i) {
                Hold hold(lock, ticket);
                guarded.visit();
            }
        }).join();
        taken += 300;
    }
    done.store(true);
    rival.join();
    CHECK(guarded.count == taken + others);
    unmap_pages(pages, 2 * kPage);
}

TEST_CASE("threads that meet a new stretch of the address space at once make one region of it") {
    LiveTable table;
    REQUIRE(table.init());
    constexpr int kThreads = 4, kRegionsEach = 50;
    std::vector<std::vector<LiveTable::Region*>> seen(kThreads);
    in_threads(kThreads, [&](std::size_t t) {
        for (std::uintptr_t r = 1; r <= kRegionsEach; ++r)
            seen[t].push_back(table.room_for(r << LiveTable::Region::kShift, 1));
    });
    for (int t = 1; t < kThreads; ++t) CHECK(seen[t] == seen[0]);
    for (std::uintptr_t r = 1; r <= kRegionsEach; ++r)
        CHECK(table.find(r << LiveTable::Region::kShift) == seen[0][r - 1]);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
