#include "residency/resident_watch.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>

#include "base/own_file.h"
#include "base/own_thread.h"
#include "lock/lock.h"
#include "base/process.h"
#include "stacks/thread_state.h"

namespace hiwater::resident_watch {

namespace {

FutexMutex
    g_control;  // of what follows, but for the peak: native code forks without the GIL, in several threads at once
OwnThread g_thread;
int g_users = 0;
std::uint64_t g_interval_ns = 1'000'000;
std::atomic<std::int64_t> g_peak{0};

std::int64_t resident_now() noexcept { return std::max<std::int64_t>(process::resident_bytes(), 0); }

void raise_peak(std::int64_t now) noexcept {
    std::int64_t seen = g_peak.load(std::memory_order_relaxed);
    while (now > seen && !g_peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
}

void run() {
    BusyGuard busy;  // nothing this thread does is the program's
    do raise_peak(resident_now());
    while (g_thread.goes_on_after(g_interval_ns));
}

bool begin_thread() noexcept {
    BusyGuard busy;
    own_files::statm.open_if_kept();
    return g_thread.begin("hiwater-watch", run);
}

// Nothing else: a signal handler may have forked, amid a malloc that a new thread would call, too.
void after_fork_in_child() noexcept {
    g_control.reset();
    g_thread.forget_in_child();
}

}  // namespace

void pause() noexcept {
    UninterruptedHold hold(g_control);
    BusyGuard busy;
    g_thread.end();
}

void resume() noexcept {
    UninterruptedHold hold(g_control);
    if (g_users > 0 && !g_thread.is_running()) begin_thread();
}

bool start(std::uint64_t interval_ns) noexcept {
    static const int once = ::pthread_atfork(nullptr, nullptr, after_fork_in_child);
    (void)once;
    UninterruptedHold hold(g_control);
    if (g_users == 0) {
        g_interval_ns = interval_ns;
        g_peak.store(resident_now(), std::memory_order_relaxed);
        own_files::statm.keep();
        if (!begin_thread()) {
            own_files::statm.release();
            return false;
        }
    }
    ++g_users;
    return true;
}

void stop() noexcept {
    UninterruptedHold hold(g_control);
    if (g_users == 0 || --g_users > 0) return;
    BusyGuard busy;
    g_thread.end();
    own_files::statm.release();
}

bool is_running() noexcept { return g_thread.is_running(); }

std::int64_t peak() noexcept {
    resume();
    return g_peak.load(std::memory_order_relaxed);
}

std::int64_t read_and_reset_peak() noexcept {
    resume();
    return g_peak.exchange(resident_now(), std::memory_order_relaxed);
}

}  // namespace hiwater::resident_watch
