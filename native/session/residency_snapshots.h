// When residency snapshots are taken: at whose request, and which of them the time allows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

#include "base/own_thread.h"
#include "base/process.h"
#include "base/raw_calls.h"
#include "session/recorder.h"

namespace hiwater::sampler {

inline constexpr std::uint64_t kMillisecond = 1'000'000;

// Requests for a residency snapshot before memory is released. Only one thread at a time has one.
class SnapshotRequests {
public:
    explicit constexpr SnapshotRequests(OwnThread& sampler) noexcept : sampler_(sampler) {}

    static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
    enum Wanted : std::uint32_t { kNothing, kBeforeRelease, kInAnyCase };  // kInAnyCase: however much memory there is

    // For the program's threads. The estimate takes what was allocated since the last reading of resident memory as
    // touched. So where it is high enough, resident memory is read.
    void ask(std::int64_t live_bytes, std::int64_t released_bytes) noexcept {
        const std::int64_t from = from_.load(std::memory_order_relaxed);
        if (not_live_.load(std::memory_order_relaxed) + live_bytes < from) return;
        const std::int64_t resident = process::resident_bytes();
        not_live_.store(resident - live_bytes, std::memory_order_relaxed);
        if (resident < from) return;
        std::int64_t highest = highest_.load(std::memory_order_relaxed);
        while (highest < resident && !highest_.compare_exchange_weak(highest, resident, std::memory_order_relaxed)) {
        }
        highest = std::max(highest, resident);
        if (resident - released_bytes > highest - highest / 32) return;  // soon enough at a later release
        request(kBeforeRelease);
    }
    void request(Wanted wanted) noexcept {
        std::uint32_t none = kNothing;
        if (!wanted_.compare_exchange_strong(none, wanted)) return;
        const std::uint64_t began = process::monotonic_ns();
        sampler_.wake();
        for (std::uint64_t waited = 0; waited < kMostWaitNs; waited = process::monotonic_ns() - began) {
            const std::uint32_t now = pending();
            if (now == kNothing) break;
            const timespec left{0, static_cast<long>(kMostWaitNs - waited)};
            platform::wait_while(&wanted_, now, &left);
        }
        wanted_.store(kNothing, std::memory_order_relaxed);
        // On a busy machine a thread continues long after its wait is over. That is not the recorder's doing.
        waited_ns_.fetch_add(std::min(process::monotonic_ns() - began, kMostWaitNs), std::memory_order_relaxed);
    }

    // For the sampler.
    std::uint32_t pending() const noexcept { return wanted_.load(std::memory_order_acquire); }
    void answer() noexcept {
        wanted_.store(kNothing, std::memory_order_release);
        platform::wake(&wanted_, 1);
    }
    // `from`: the resident memory from which on a request is worth its wait.
    void accept(std::int64_t from, std::int64_t not_live) noexcept {
        not_live_.store(not_live, std::memory_order_relaxed);
        from_.store(from, std::memory_order_relaxed);
    }
    void forget_highest() noexcept { highest_.store(0, std::memory_order_relaxed); }
    void forget_waits() noexcept { waited_ns_.store(0, std::memory_order_relaxed); }
    std::uint64_t waited_ns() const noexcept { return waited_ns_.load(std::memory_order_relaxed); }
    void refuse() noexcept {
        from_.store(kNever, std::memory_order_relaxed);
        answer();
    }

private:
    OwnThread& sampler_;
    static constexpr std::uint64_t kMostWaitNs = 50'000'000;
    std::atomic<std::uint32_t> wanted_{kNothing};  // by who waits
    std::atomic<std::int64_t> from_{kNever}, highest_{0};
    std::atomic<std::int64_t> not_live_{0};  // resident memory minus live bytes, when it was last read
    std::atomic<std::uint64_t> waited_ns_{0};
};

// Takes a residency snapshot where a peak of resident memory ends: a thread is about to release memory and asks for
// one, or resident memory has begun to fall, or it rests. It takes some while memory grows, too, for a program that is
// killed. All together take a hundredth of the processor's time that the program takes, and a burst where peaks end:
// half of it where memory has only begun to fall, as it does again and again during imports. So the less of that is
// left, the more memory must have grown.
class ResidencySnapshots {
public:
    // `wanted`: what a thread waits for.
    void consider(Recorder& recorder, std::int64_t resident, std::uint32_t wanted,
                  SnapshotRequests& requests) noexcept {
        const std::uint64_t now = recorder.now_ns();
        if (height_ == 0) begin(resident);
        if (wanted == SnapshotRequests::kInAnyCase) return take(recorder, resident, requests);
        if (resident > highest_ + kStir) {
            highest_ = resident;
            rose_ns_ = now;
        }
        const std::int64_t grown = resident - height_;
        const bool rests = now - rose_ns_ >= kRestNs && wanted == SnapshotRequests::kNothing;
        const bool ends = rests || wanted == SnapshotRequests::kBeforeRelease,
                   falls = resident < highest_ - highest_ / kFall;
        const double affordable = affordable_of(resident, 0);
        const std::int64_t enough = ends    ? least_at_end(resident)
                                    : falls ? least_growth(affordable_of(resident, kBurstOfFalls))
                                            : least_growth(affordable / kInsurance);
        if (grown >= enough || (rests && affordable >= kAtRest && grown >= height_ / 100 + kLeastAtRest))
            take(recorder, resident, requests);
    }
    // For a forked child, which knows what a snapshot costs.
    ResidencySnapshots for_child() const noexcept {
        ResidencySnapshots child;
        child.last_ns_ = last_ns_;
        child.last_bytes_ = last_bytes_;
        return child;
    }
    // The resident memory from which on a thread is to ask before it releases some.
    std::int64_t asks_from(std::uint64_t now, std::uint64_t waited_ns) const noexcept {
        const std::int64_t growth = least_at_end(height_);
        if (growth == kNever || waited_ns > kWaitBurstNs + now / 100) return kNever;
        return height_ + growth;
    }

private:
    static constexpr std::int64_t kStep = 25, kStepOfOne = 5, kFall = 64, kLeastAtRest = 1 << 20, kStir = 64 << 10;
    static constexpr std::int64_t kNever = SnapshotRequests::kNever;
    // What may be read at once. Bytes, since a slow machine takes as much longer for a snapshot as for the program.
    static constexpr std::int64_t kBurst = 256 << 20, kBurstOfFalls = kBurst / 8;
    static constexpr std::uint64_t kRestNs = 200 * kMillisecond, kWaitBurstNs = 200 * kMillisecond;
    static constexpr std::uint64_t kShare = 100;
    static constexpr double kAtRest = 2, kInsurance = 8;

    void begin(std::int64_t resident) noexcept {
        height_ = highest_ = resident;
        used_before_ns_ = process::process_ns();
    }
    // How many snapshots there is time for. They take time for each mapping, and for some pages.
    double affordable_of(std::int64_t resident, std::int64_t burst_bytes) const noexcept {
        const double last_bytes = static_cast<double>(last_bytes_);
        const double ns_of_byte = static_cast<double>(last_ns_) / last_bytes;
        const double share_ns = static_cast<double>((process::process_ns() - used_before_ns_) / kShare);
        const double left_ns =
            share_ns + static_cast<double>(burst_bytes) * ns_of_byte - static_cast<double>(spent_ns_);
        const double bytes = (std::max(static_cast<double>(resident), last_bytes) + last_bytes) / 2;
        return left_ns / (ns_of_byte * bytes);
    }
    // Where a peak ends, one more is allowed than there is time for.
    std::int64_t least_at_end(std::int64_t resident) const noexcept {
        return least_growth(affordable_of(resident, kBurst) + 1);
    }
    // A twenty-fifth where there is time for five, a fifth for one, two fifths for a half.
    std::int64_t least_growth(double affordable) const noexcept {
        if (affordable <= 0) return kNever;
        const double step = std::min<double>(kStepOfOne * affordable, kStep);
        return static_cast<std::int64_t>(
            std::min(static_cast<double>(height_) / step, static_cast<double>(kNever / 2)));
    }
    void take(Recorder& recorder, std::int64_t resident, SnapshotRequests& requests) noexcept {
        height_ = highest_ = resident;
        requests.forget_highest();
        // Of the processor's time: on a busy machine a thread waits for its turn ten times as long as a snapshot takes.
        const std::uint64_t began_ns = process::thread_ns();
        recorder.take_residency_snapshot();
        last_ns_ = std::max<std::uint64_t>(process::thread_ns() - began_ns, 1);
        last_bytes_ = std::max<std::int64_t>(resident, 1);
        spent_ns_ += last_ns_;
    }

    std::int64_t height_ = 0;   // at the last snapshot
    std::int64_t highest_ = 0;  // since
    std::uint64_t rose_ns_ = 0, used_before_ns_ = 0, spent_ns_ = 0;
    std::uint64_t last_ns_ =
        kMillisecond;  // what the last one took, with that much resident; for the first one a guess
    std::int64_t last_bytes_ = 32 << 20;
};

}  // namespace hiwater::sampler
