#include "resident_watch.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "process.h"
#include "thread_state.h"

namespace hiwater::resident_watch {

namespace {

pthread_t g_thread;
bool g_running = false;
int g_users = 0;
std::uint64_t g_interval_ns = 1'000'000;
std::atomic<std::uint32_t> g_stop{0};
std::atomic<std::int32_t> g_thread_id{0};
std::atomic<std::int64_t> g_peak{0};

// The program may close or reuse any descriptor, so none is kept: opening costs 5 us, which nobody waits for.
std::int64_t resident_now() noexcept {
    const int fd = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const std::int64_t now = process::read_statm(fd);
    ::close(fd);
    return now;
}

void raise_peak(std::int64_t now) noexcept {
    std::int64_t seen = g_peak.load(std::memory_order_relaxed);
    while (now > seen && !g_peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
}

void* run(void*) {
    ++tls.busy;  // for good: nothing this thread does is the program's
    ::prctl(PR_SET_NAME, "hiwater-watch");
    g_thread_id.store(static_cast<std::int32_t>(::syscall(SYS_gettid)), std::memory_order_release);
    const timespec interval{static_cast<time_t>(g_interval_ns / 1'000'000'000), static_cast<long>(g_interval_ns % 1'000'000'000)};
    while (g_stop.load(std::memory_order_acquire) == 0) {
        raise_peak(resident_now());
        ::syscall(SYS_futex, &g_stop, FUTEX_WAIT_PRIVATE, 0, &interval, nullptr, 0);
    }
    return nullptr;
}

bool create_thread() noexcept {
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    g_stop.store(0, std::memory_order_relaxed);
    g_thread_id.store(0, std::memory_order_relaxed);
    BusyGuard busy;
    g_running = ::pthread_create(&g_thread, nullptr, run, nullptr) == 0;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return g_running;
}

void end_thread() noexcept {
    if (!g_running) return;
    g_stop.store(1, std::memory_order_release);
    ::syscall(SYS_futex, &g_stop, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    BusyGuard busy;
    ::pthread_join(g_thread, nullptr);
    g_running = false;
    // Joined, the kernel may still count it for a moment, and CPython warns who forks with a second thread.
    const std::int32_t id = g_thread_id.load(std::memory_order_acquire);
    for (int i = 0; i < 2000 && id != 0 && ::syscall(SYS_tgkill, ::getpid(), id, 0) == 0; ++i) ::sched_yield();
}

void after_fork() noexcept {
    if (g_users > 0) create_thread();
}

}  // namespace

bool start(std::uint64_t interval_ns) noexcept {
    static const int once = ::pthread_atfork(end_thread, after_fork, after_fork);
    (void)once;
    if (g_users > 0) {
        ++g_users;
        return true;
    }
    g_interval_ns = interval_ns;
    g_peak.store(resident_now(), std::memory_order_relaxed);
    if (!create_thread()) return false;
    ++g_users;
    return true;
}

void stop() noexcept {
    if (g_users == 0 || --g_users > 0) return;
    end_thread();
}

std::int64_t peak() noexcept { return g_peak.load(std::memory_order_relaxed); }

std::int64_t fold() noexcept { return g_peak.exchange(resident_now(), std::memory_order_relaxed); }

}  // namespace hiwater::resident_watch
