#include "session/sampler.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "devices/device_watch.h"
#include "session/own_thread.h"
#include "base/process.h"
#include "session/recorder.h"

namespace hiwater::sampler {

namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;
constexpr std::uint64_t kQuietAfterFork = 20 * kMillisecond;

FutexMutex g_control;  // of who makes and ends the thread: native code forks in several threads at once
OwnThread g_thread;
std::atomic<std::uint64_t> g_paused_at{0};  // 0: not paused

bool has_own_descriptors() noexcept {
#if defined(SYS_close_range)
    if (::unshare(CLONE_FILES) != 0) return false;
    // The copies must go at once, or the other end of a pipe would wait for ours to close.
    ::syscall(SYS_close_range, 0U, ~0U, 0U);
    return true;
#else
    return false;
#endif
}

// Takes a residency snapshot when resident memory reaches a new height: after a large step while it grows, after a small one once it rests.
// The snapshots may take a hundredth of a processor's time at most.
class ResidencyLooks {
public:
    void consider(Recorder& recorder, std::int64_t resident) noexcept {
        const std::uint64_t now = process::monotonic_ns();
        if (height_ == 0) height_ = highest_ = resident;  // as the recording began
        if (resident > highest_ + kStir) {
            highest_ = resident;
            rose_ns_ = now;
        }
        const bool has_grown = resident >= height_ + height_ / 20 + kLeastGrowth;
        const bool rests = resident >= height_ + height_ / 100 + kLeastAtRest && now - rose_ns_ >= kRestNs;
        if ((!has_grown && !rests) || now < next_ns_) return;
        height_ = resident;
        // Of the processor's time: on a busy machine a thread waits for its turn ten times as long as a snapshot takes.
        const std::uint64_t began_ns = process::thread_ns();
        recorder.take_residency_snapshot();
        next_ns_ = process::monotonic_ns() + 100 * (process::thread_ns() - began_ns);
    }

private:
    static constexpr std::int64_t kLeastGrowth = 4 << 20, kLeastAtRest = 1 << 20, kStir = 64 << 10;
    static constexpr std::uint64_t kRestNs = 200'000'000;
    std::int64_t height_ = 0;   // at the last snapshot
    std::int64_t highest_ = 0;  // since
    std::uint64_t rose_ns_ = 0, next_ns_ = 0;
};

// What every recording has from its first instant: a point of the timeline, and the limits as they are. Taken by the thread that starts it,
// which would only wait for ours to do it.
void look_first() noexcept {
    BusyGuard busy;
    Recorder& recorder = Recorder::instance();
    const std::uint64_t now = recorder.now_ns();
    std::int64_t address_space_bytes = -1;
    const std::int64_t resident_bytes = process::resident_bytes(&address_space_bytes);
    recorder.tick(now, resident_bytes, 0);
    recorder.note_pressure(now, address_space_bytes);
}

void run() {
    const bool own_descriptors = has_own_descriptors();
    const int kept = own_descriptors ? ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC) : -1;
    Recorder& recorder = Recorder::instance();
    std::uint64_t last_peak_ns = 0, now = recorder.now_ns();
    ResidencyLooks looks;
    while (g_thread.goes_on_after(std::clamp(now / 128, kMillisecond, 10 * kMillisecond))) {
        now = recorder.now_ns();
        const capture::file_guard::OwnFaults faults;  // the capture may be truncated under us
        // Reading the kernel's peak costs ten times a plain reading. It only has to be recent in case the process is killed.
        process::Resident resident;
        if (now - last_peak_ns >= 50 * kMillisecond && process::read_status(&resident)) last_peak_ns = now;
        std::int64_t address_space_bytes = -1;
        const std::int64_t resident_bytes =
            kept >= 0 ? process::read_statm(kept, &address_space_bytes) : process::resident_bytes(&address_space_bytes);
        recorder.tick(now, resident_bytes, resident.peak_bytes);
        recorder.note_pressure(now, address_space_bytes);
        recorder.note_collections(hw_full_collections());
        looks.consider(recorder, resident_bytes);
        device_watch::ask_if_due(now);
    }
    if (kept >= 0) ::close(kept);
}

bool begin_thread() noexcept { return g_thread.begin("hiwater", run); }

}  // namespace

bool start() noexcept {
    BusyGuard busy;  // a signal's handler must not come back here
    UninterruptedHold hold(g_control);
    g_paused_at.store(0, std::memory_order_relaxed);
    if (g_thread.is_running()) return true;
    look_first();
    return begin_thread();
}

void stop() noexcept {
    BusyGuard busy;
    UninterruptedHold hold(g_control);
    g_paused_at.store(0, std::memory_order_relaxed);
    g_thread.end();
}

bool pause_for_fork() noexcept {
    BusyGuard busy;
    UninterruptedHold hold(g_control);
    if (!g_thread.is_running()) return g_paused_at.load(std::memory_order_relaxed) != 0;
    g_thread.end();
    g_paused_at.store(process::monotonic_ns(), std::memory_order_release);
    return true;
}

void note_forked() noexcept {
    std::uint64_t paused = g_paused_at.load(std::memory_order_acquire);
    if (paused != 0) g_paused_at.compare_exchange_strong(paused, process::monotonic_ns());
    Recorder::instance().ask_python();
}

void resume_if_due() noexcept {
    std::uint64_t paused = g_paused_at.load(std::memory_order_acquire);
    if (paused == 0) return;
    if (process::monotonic_ns() - paused < kQuietAfterFork) return Recorder::instance().ask_python();
    BusyGuard busy;
    UninterruptedHold hold(g_control);
    if (g_paused_at.compare_exchange_strong(paused, 0) && !g_thread.is_running()) begin_thread();
}

bool is_running() noexcept { return g_thread.is_running(); }

void forget_in_child() noexcept {
    g_control.reset();
    g_thread.forget_in_child();
    g_paused_at.store(0, std::memory_order_relaxed);
}

}  // namespace hiwater::sampler
