#include "residency/malloc_totals.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/errno_kept.h"
#include "base/process.h"
#include "base/raw_calls.h"

namespace hiwater::residency {

namespace {

// Longer than a thread waits for a processor on a busy machine.
constexpr std::uint64_t kSecond = 1'000'000'000, kPatienceNs = 5 * kSecond;

struct MallocInfo {  // struct mallinfo2 of glibc 2.33 and later
    std::size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
MallocInfo (*g_mallinfo2)() = nullptr;

// Counts the threads inside a section; others can wait until it is empty.
class Occupied {
public:
    void enter() noexcept { inside_.fetch_add(1, std::memory_order_seq_cst); }
    void leave() noexcept {
        if (inside_.fetch_sub(1, std::memory_order_seq_cst) == 1)
            raw::syscall(SYS_futex, &inside_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
    }
    bool is_empty() const noexcept { return inside_.load(std::memory_order_seq_cst) == 0; }
    void reset() noexcept { inside_.store(0, std::memory_order_relaxed); }

    void wait_until_empty(std::uint64_t deadline_ns) noexcept {
        for (std::uint32_t seen = inside_.load(std::memory_order_seq_cst); seen != 0;
             seen = inside_.load(std::memory_order_seq_cst)) {
            const std::uint64_t now = process::monotonic_ns();
            if (now >= deadline_ns) return;
            const std::uint64_t left_ns = deadline_ns - now;
            const timespec left{static_cast<time_t>(left_ns / kSecond), static_cast<long>(left_ns % kSecond)};
            raw::syscall(SYS_futex, &inside_, FUTEX_WAIT_PRIVATE, seen, &left, nullptr, 0);
        }
    }

private:
    std::atomic<std::uint32_t> inside_{0};
};

Occupied g_asking, g_forking;
std::atomic<bool> g_stopped{false};

// Each side enters its own section before it checks the other's, so at least one of them sees the other.
void begin_to_ask() noexcept {
    const std::uint64_t deadline_ns = process::monotonic_ns() + kPatienceNs;
    g_asking.enter();
    while (!g_forking.is_empty() && process::monotonic_ns() < deadline_ns) {
        g_asking.leave();
        g_forking.wait_until_empty(deadline_ns);
        g_asking.enter();
    }
}

}  // namespace

void prepare_malloc_totals() noexcept {
    if (g_mallinfo2 == nullptr) g_mallinfo2 = reinterpret_cast<MallocInfo (*)()>(::dlsym(RTLD_DEFAULT, "mallinfo2"));
}

MallocTotals malloc_totals() noexcept {
    if (g_mallinfo2 == nullptr || g_stopped.load(std::memory_order_relaxed)) return {};
    begin_to_ask();
    const bool are_known = !g_stopped.load(std::memory_order_seq_cst);
    const MallocInfo info = are_known ? g_mallinfo2() : MallocInfo{};
    g_asking.leave();
    return {are_known, static_cast<std::int64_t>(info.uordblks), static_cast<std::int64_t>(info.hblkhd)};
}

void hold_malloc_totals_for_fork() noexcept {
    const ErrnoKept kept;
    g_forking.enter();
    g_asking.wait_until_empty(process::monotonic_ns() + kPatienceNs);
}

void release_malloc_totals_after_fork() noexcept {
    const ErrnoKept kept;
    g_forking.leave();
}

void stop_malloc_totals() noexcept {
    g_stopped.store(true, std::memory_order_seq_cst);
    hold_malloc_totals_for_fork();
}

void resume_malloc_totals() noexcept {
    g_stopped.store(false, std::memory_order_relaxed);
    release_malloc_totals_after_fork();
}

void forget_malloc_totals_in_child() noexcept {
    g_asking.reset();
    g_forking.reset();
}

}  // namespace hiwater::residency
