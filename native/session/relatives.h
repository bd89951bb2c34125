// The processes of a run, read at nearly one moment by the one that began it: what each has resident, and how much of
// that others count, too. A forked child that waits reads nothing itself, and what processes share changes in all of
// them when one of them forks, ends or writes. For the sampler's thread alone.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/process.h"

namespace hiwater {

class Recorder;

class Relatives {
public:
    // Reads them if that is due. True where this process's own reading is among these, in `own`.
    bool read_if_due(Recorder& recorder, std::uint64_t now, process::Shared* own) noexcept;
    // As the recording ends: what they shared since the reading before it is between the two.
    void read_last(Recorder& recorder, std::uint64_t now) noexcept;

private:
    // For each reading the kernel visits every resident page of all these processes. All together take at most 1/200 of
    // one processor's time, and a burst: short programs change fast. Where since the last one they have hardly copied
    // pages that they shared, and have hardly more or fewer, it takes a tenth of that. To find out whether they have
    // takes as much at most, once the burst is over, and 1/50 within it.
    static constexpr std::uint64_t kBurstNs = 40'000'000, kShare = 200, kCalmShare = 2'000, kPause = 16,
                                   kBurstPause = 50, kLeastPauseNs = 20'000'000, kMostDelayNs = 2'000'000;
    static constexpr std::int64_t kFewCopied = 128, kFewMore = 8;

    static constexpr int kMost = 256;

    struct Copies {
        std::int64_t faults, pages;  // at the check before
        std::int64_t shared;         // of its pages, which it has not copied since the last reading, at most
    };

    void find() noexcept;
    bool have_changed() noexcept;
    void count_copied(Copies& of, const process::Stat& stat, bool are_same) noexcept;
    bool read(Recorder& recorder, std::uint64_t now, process::Shared* own) noexcept;

    pid_t processes_[kMost], before_[kMost];  // this one first
    std::uint64_t started_[kMost];            // in ticks
    int count_ = 0, last_count_ = 0;
    std::uint64_t next_ns_ = 0;  // the next check
    std::uint64_t read_from_ns_ = 0, calm_until_ns_ = 0, spent_ns_ = 0, last_ns_ = 0;
    Copies of_[kMost];
    std::int64_t numbers_ = 0, pages_ = 0;  // at the check before: the sums over the processes
    // Of the last reading, and since then:
    std::int64_t read_pages_ = 0;
    bool are_others_ = false;
    std::int64_t copied_ = 0, told_ = 0;  // pages, at most; and how many of them the capture tells of
};

}  // namespace hiwater
