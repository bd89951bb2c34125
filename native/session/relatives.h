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
                                   kBurstPause = 50, kLeastPauseNs = 20'000'000;
    static constexpr std::int64_t kFewCopied = 128, kFewMore = 8;

    static constexpr int kMost = 256;

    // What a process copies of the pages that it shared at the last reading. A process that asks for pages and gives
    // them back has as many faults, and copies nothing. Who was seen to do so counts for 1/kChurnsShare: at once where
    // it is to be decided whether to read, and in the capture once it was seen for kChurnsNs.
    struct Copies {
        static constexpr std::uint64_t kChurnsNs = 500'000'000;
        static constexpr std::int64_t kChurnsShare = 32, kFewFaults = 32, kHardlyLost = 16;

        void count(const process::Stat& stat, std::int64_t* all, std::int64_t* news) noexcept;
        void note_reading(std::int64_t shared_now, std::uint64_t now) noexcept;

        std::int64_t faults, pages;   // at the check before
        std::int64_t shared, copied;  // pages, at most: at the last reading, and of these since
        std::uint64_t churns_ns;
        std::uint64_t read_ns;  // 0: not since it was forked, or has forked
        pid_t pid;
    };

    void find() noexcept;
    bool have_changed() noexcept;
    bool read(Recorder& recorder, std::uint64_t now, process::Shared* own) noexcept;
    void tell_copied(Recorder& recorder, std::uint64_t now) noexcept;

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
    // Pages, at most; of these without what is no news; and how many the capture tells of.
    std::int64_t copied_ = 0, news_ = 0, told_ = 0;
};

}  // namespace hiwater
