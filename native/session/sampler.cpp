#include "session/sampler.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/main_thread_end.h"
#include "base/own_thread.h"
#include "devices/device_watch.h"
#include "holders/requests.h"
#include "session/main_thread_call.h"
#include "base/own_file.h"
#include "base/process.h"
#include "session/children.h"
#include "session/pace.h"
#include "session/recorder.h"
#include "session/relatives.h"
#include "session/residency_snapshots.h"
#include "stacks/recursion.h"

namespace hiwater::sampler {

namespace {

constexpr std::int64_t kPageBytes = 4096;
// With a second thread in the process, malloc takes locks, and the kernel tells other processors of each unmapping: 2 %
// of what a forked child does. So in a child the thread begins once the child is that old or holds that much. Many are
// over before.
constexpr std::uint64_t kQuietAfterFork = 20 * kMillisecond, kQuietInChild = 100 * kMillisecond;
constexpr std::int64_t kWorthSampling = 16 << 20;
// How long a program that rests has no sample where its memory group is full (Limits::is_group_full).
constexpr std::uint64_t kLongestOfFull = 1'000 * kMillisecond;

FutexMutex g_control;  // of who makes and ends the thread: native code forks in several threads at once
OwnThread g_thread;
std::atomic<std::uint64_t> g_paused_at{0};   // 0: not paused
std::atomic<bool> g_is_young_child{false};   // in this process the thread has not begun yet
std::atomic<bool> g_rests{false};            // the thread sleeps longer than usual, and nothing has happened since
std::atomic<std::uint64_t> g_sampled_ns{0};  // of the last sample that was taken while it did not run

// What the thread reads, and what resident memory is read from while it does not run.
class Files {
public:
    void keep() noexcept {
        if (!std::exchange(are_kept_, true)) each([](OwnFile& file) { file.keep(); });
    }
    void release() noexcept {
        if (std::exchange(are_kept_, false)) each([](OwnFile& file) { file.release(); });
    }
    void open() noexcept {
        each([](OwnFile& file) { file.open_if_kept(); });
    }

private:
    template <typename Call>
    static void each(const Call& call) noexcept {
        for (OwnFile* const file : own_files::kOfSampler) call(*file);
        recorder().each_file_of_limits(call);
    }
    bool are_kept_ = false;
};

Files g_files;

SnapshotRequests g_requests(g_thread);

std::atomic<bool> g_has_relatives{false};  // it may share pages that each of them counts

// What the process shares with its relatives. For each reading the kernel visits every resident page, which displaces
// what the processors had in their caches. So it is followed by a pause of kPause times what it took, and a longer one
// where the process has hardly touched new pages. A fork changes what is shared at once, and to copy the page tables
// takes about as long as a reading: after it the pause is short. Many forked children do little work: before the first
// reading in one there is such a pause, too, unless the child ends first. Only for the sampler's thread, and for others
// while it does not run.
class SharedPages {
public:
    explicit SharedPages(bool is_child = false) noexcept : is_to_wait_(is_child) {}

    // The last reading; none while there is none since the last fork. `at_ns` is the time now; after a reading that did
    // not have to wait, that of its end: relatives may have ended in between.
    process::Shared at(std::uint64_t* at_ns, std::int64_t resident_bytes) noexcept {
        const std::uint64_t now = *at_ns;
        if (!g_has_relatives.load(std::memory_order_relaxed) || !is_due(now, resident_bytes)) return last_;
        faults_ = process::page_faults();
        const std::uint64_t from_ns = process::monotonic_ns(), began_ns = process::thread_ns();
        process::read_shared(&last_);
        const std::uint64_t took_ns = process::thread_ns() - began_ns;
        if (!process::was_delayed(from_ns, took_ns)) *at_ns = recorder().now_ns();
        is_to_wait_ = false;
        after_fork_ns_ = now + std::max(kLeastPauseNs, kPauseAtFork * took_ns);
        pause_.begin(now, kPause * took_ns, kLeastPauseNs);
        calm_until_ns_ = now + std::max(kLeastPauseNs, kCalmPause * took_ns);
        return last_;
    }
    // The same where the reading was of all processes of the run.
    void note(const process::Shared& read, std::uint64_t now) noexcept {
        last_ = read;
        faults_ = process::page_faults();
        is_to_wait_ = false;
        calm_until_ns_ = now + kCalmPause * kMillisecond;
        pause_.begin(now, 0, kCalmPause * kMillisecond);
    }
    void note_fork() noexcept {
        last_ = process::Shared{};
        calm_until_ns_ = after_fork_ns_;
    }
    // Whether there is to be a last reading: the first is still to come, or much was touched, or copied, since the last
    // one. It is then due at once.
    bool is_due_at_end() noexcept {
        if (!std::exchange(is_to_wait_, false) && !has_touched(process::resident_bytes())) return false;
        calm_until_ns_ = 0;
        return true;
    }

private:
    static constexpr std::uint64_t kPause = 128, kCalmPause = 1024, kPauseAtFork = 8, kLeastPauseNs = 20 * kMillisecond;
    static constexpr std::uint64_t kPageNs = 50,
                                   kMostWaitNs = 100 * kMillisecond;  // what a reading takes for each page, about
    static constexpr std::int64_t kFewTouched = 32;

    bool is_due(std::uint64_t now, std::int64_t resident_bytes) const noexcept {
        if (is_to_wait_)
            return now >=
                   std::min(kPause * kPageNs * static_cast<std::uint64_t>(resident_bytes / kPageBytes), kMostWaitNs);
        return now >= calm_until_ns_ || (pause_.is_over(now) && has_touched(resident_bytes));
    }
    bool has_touched(std::int64_t resident_bytes) const noexcept {
        return (process::page_faults() - faults_) * kPageBytes >= resident_bytes / kFewTouched;
    }

    bool is_to_wait_;
    process::Shared last_;
    std::int64_t faults_ = 0;
    Pause pause_;
    std::uint64_t after_fork_ns_ = 0, calm_until_ns_ = 0;
};

SharedPages g_shared;  // as the next ones
Relatives g_relatives;
ResidencySnapshots g_snapshots;  // of this recording: the sampler's thread comes and goes with forks

enum class Reads { memory, limits, shared_pages };  // each with those before it

// Takes a sample while the sampler's thread does not run: as the recording begins, where the program forks, and at the
// end.
void take_sample(Reads reads) noexcept {
    BusyGuard busy;
    Recorder& recorder = hiwater::recorder();
    std::uint64_t now = recorder.now_ns();
    g_sampled_ns.store(now, std::memory_order_relaxed);
    const process::Sizes sizes = process::sizes();
    recorder.tick(now, sizes, 0);
    if (reads == Reads::memory) return;
    const process::Shared shared =
        reads == Reads::shared_pages ? g_shared.at(&now, sizes.resident_bytes) : process::Shared{};
    recorder.note_pressure(now, sizes.address_space_bytes, shared);
}

bool is_sample_due() noexcept {
    constexpr std::uint64_t kSpacing = 10 * kMillisecond;
    return recorder().now_ns() >= g_sampled_ns.load(std::memory_order_relaxed) + kSpacing;
}

void run() {
    BusyGuard busy;  // nothing this thread does is the program's
    Recorder& recorder = hiwater::recorder();
    recorder.lock().allow_bias();
    std::uint64_t last_peak_ns = 0, now = recorder.now_ns(), sampled_ns = now;
    const auto used = []() -> Pace::Used {
        const std::uint64_t own_ns = process::thread_ns();
        return {.own_ns = own_ns, .program_ns = process::process_ns() - own_ns};
    };
    Pace pace(now, used());
    const auto sleep = [&] {
        const std::uint64_t ns = pace.next(now, used(), recorder.share_of_limit() > Limits::kWatched);
        g_rests.store(pace.rests(), std::memory_order_relaxed);
        const bool goes_on = g_thread.goes_on_after(ns);
        if (!g_rests.exchange(false, std::memory_order_relaxed)) pace.end_rest();
        return goes_on;
    };
    while (sleep()) {
        now = recorder.now_ns();
        const std::uint32_t wanted = g_requests.pending();
        // The kernel may have dropped the pages of the capture that a sample touches.
        const bool is_for_nothing = pace.rests() && wanted == SnapshotRequests::kNothing;
        if (is_for_nothing && now - sampled_ns < kLongestOfFull && recorder.is_group_full()) continue;
        sampled_ns = now;
        const capture::file_guard::OwnFaults faults;  // the capture may be truncated under us
        // Where the maximum has not risen since the recording began, it may be older. The kernel's peak is in /proc
        // then: reading it costs ten times a plain reading.
        process::Resident resident;
        const std::int64_t maximum = process::maximum_resident();
        if (maximum > recorder.maximum_at_start()) {
            resident.peak_bytes = maximum;
        } else if (now - last_peak_ns >= (pace.rests() ? 200 : 50) * kMillisecond && process::read_status(&resident)) {
            last_peak_ns = now;
        }
        const process::Sizes sizes = process::sizes();
        if (sizes.resident_bytes == 0) end_as_main_thread();  // its memory is 0 then
        recorder.tick(now, sizes, resident.peak_bytes);
        if (!has_relatives() && children.have_begun()) note_relatives();
        process::Shared own;
        if (has_relatives() && !children.is_child() && g_relatives.read_if_due(recorder, now, &own))
            g_shared.note(own, now);
        std::uint64_t noted = now;
        const process::Shared shared = g_shared.at(&noted, sizes.resident_bytes);
        recorder.note_pressure(noted, sizes.address_space_bytes, shared);
        recorder.note_collections(hw_full_collections());
        g_snapshots.consider(recorder, sizes.resident_bytes, wanted, g_requests);
        recorder.leave_last_words();
        if (wanted != SnapshotRequests::kNothing) g_requests.answer();
        g_requests.accept(g_snapshots.asks_from(now, g_requests.waited_ns()),
                          sizes.resident_bytes - recorder.live_bytes());
        device_watch::request_if_due(now);
        holder_requests::consider();
    }
    g_requests.refuse();
}

void prepare(bool is_child) noexcept {
    g_shared = SharedPages(is_child);
    std::construct_at(&g_relatives);  // in place: it has ten kilobytes, and a thread's stack may be small
    g_snapshots = is_child ? g_snapshots.for_child() : ResidencySnapshots{};
    g_requests.forget_waits();
    g_files.keep();
    if (children.is_child()) note_relatives();
    take_sample(is_child ? Reads::memory : Reads::limits);  // a child's parent has read the limits
}

bool begin_thread() noexcept {
    BusyGuard busy;
    g_is_young_child.store(false, std::memory_order_relaxed);
    g_files.open();
    return g_thread.begin("hiwater", run);
}

// Begins the thread again as soon as the main thread has returned from its fork: a program that waits for its child
// asks for no memory.
class AfterFork {
public:
    // After a fork by the interpreter. To begin the thread and end it again takes a twentieth of what a fork takes:
    // after many that follow each other closely, and where another thread forks, an allocation begins it. A program may
    // contain the interpreter, and fork without the GIL.
    void expect(std::uint64_t now) noexcept {
        many_ = now - last_ns_ < kQuietAfterFork ? many_ + 1 : 0;
        last_ns_ = now;
        if (many_ >= kMost || !process::is_main_thread() || PyGILState_Check() == 0) return;
        frames_left_ = recursion::frames_left();
        tries_ = 0;
        call_.request_with_gil();
    }
    void forget_in_child() noexcept { call_.begin(); }

private:
    static constexpr std::uint32_t kMost = 256;         // pools have fewer workers
    static constexpr std::uint32_t kMostTries = 1'024;  // 0.1 ms

    static int resume() noexcept;

    MainThreadCall call_{resume};
    std::uint64_t last_ns_ = 0;
    std::uint32_t many_ = 0, tries_ = 0;
    int frames_left_ = 0;
};

AfterFork g_after_fork;

int AfterFork::resume() noexcept {
    if (recursion::frames_left() < g_after_fork.frames_left_) {
        // In a callback of os.register_at_fork(): CPython counts threads after the last one. A call that is requested
        // again here comes at once, up to 32 times.
        if (++g_after_fork.tries_ < kMostTries) g_after_fork.call_.request_with_gil();
    } else if (!g_is_young_child.load(std::memory_order_relaxed)) {
        sampler::resume();
    }
    return 0;
}

}  // namespace

bool start() noexcept {
    BusyGuard busy;  // a signal's handler must not come back here
    UninterruptedHold hold(g_control);
    g_paused_at.store(0, std::memory_order_relaxed);
    if (g_thread.is_running()) return true;
    prepare(false);
    return begin_thread();
}

void start_later() noexcept {
    prepare(true);
    g_is_young_child.store(true, std::memory_order_relaxed);
    g_paused_at.store(process::monotonic_ns(), std::memory_order_relaxed);
    recorder().ask_python();
}

void stop() noexcept {
    BusyGuard busy;
    UninterruptedHold hold(g_control);
    const bool has_waited = g_paused_at.exchange(0, std::memory_order_relaxed) != 0 && is_sample_due();
    g_thread.end();
    if (has_relatives() && !children.is_child()) {
        Recorder& recorder = hiwater::recorder();
        g_relatives.read_last(recorder, recorder.now_ns());
    }
    const bool is_shared_due = has_relatives() && g_shared.is_due_at_end();
    if ((is_shared_due || has_waited) && !recorder().is_row_enough()) take_sample(Reads::shared_pages);
    g_files.release();
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
    note_relatives();
    {
        BusyGuard busy;
        UninterruptedHold hold(g_control);
        g_shared.note_fork();
        if (!g_thread.is_running()) take_sample(Reads::shared_pages);  // what the two share is most at this moment
    }
    const std::uint64_t now = process::monotonic_ns();
    std::uint64_t paused = g_paused_at.load(std::memory_order_acquire);
    if (paused != 0) g_paused_at.compare_exchange_strong(paused, now);
    recorder().ask_python();
    g_after_fork.expect(now);
}

bool is_to_rest() noexcept {
    const std::uint64_t paused = g_paused_at.load(std::memory_order_acquire);
    if (paused == 0) return false;
    const std::uint64_t now = process::coarse_monotonic_ns();
    if (now < paused + kQuietAfterFork) return true;
    return g_is_young_child.load(std::memory_order_relaxed) && now < paused + kQuietInChild &&
           recorder().live_bytes() < kWorthSampling;
}

void resume() noexcept {
    std::uint64_t paused = g_paused_at.load(std::memory_order_acquire);
    if (paused == 0) return;
    BusyGuard busy;
    UninterruptedHold hold(g_control);
    if (!g_paused_at.compare_exchange_strong(paused, 0) || g_thread.is_running()) return;
    if (is_sample_due()) take_sample(Reads::memory);  // of what it held until now
    begin_thread();
}

bool is_running() noexcept { return g_thread.is_running(); }

void before_release(std::int64_t live_bytes, std::int64_t released_bytes) noexcept {
    note_activity();
    g_requests.ask(live_bytes, released_bytes);
}

void take_snapshot_before_exec() noexcept {
    if (g_thread.is_running()) g_requests.request(SnapshotRequests::kInAnyCase);
}

void note_activity() noexcept {
    if (g_rests.exchange(false, std::memory_order_relaxed)) return g_thread.wake();
    if (g_paused_at.load(std::memory_order_acquire) == 0 || !is_sample_due()) return;
    BusyGuard busy;
    UninterruptedHold hold(g_control);
    if (!g_thread.is_running()) take_sample(Reads::shared_pages);
}

bool has_relatives() noexcept { return g_has_relatives.load(std::memory_order_relaxed); }
void note_relatives() noexcept { g_has_relatives.store(true, std::memory_order_relaxed); }

void forget_in_child() noexcept {
    note_relatives();
    g_rests.store(false, std::memory_order_relaxed);
    g_shared = SharedPages(true);
    g_control.reset();
    g_thread.forget_in_child();
    g_after_fork.forget_in_child();
    g_requests.refuse();
    g_files.release();  // the parent's
    g_paused_at.store(0, std::memory_order_relaxed);
    holder_requests::forget_in_child();
}

}  // namespace hiwater::sampler
