// When the sampler's thread takes its next sample.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hiwater {

// All samples together take no more than 1/kShare of the processor's time that the program takes, 1/kClockShare of what
// passes, and a burst, which a program that rested has again. Where many processes share the processors, the program
// gets less done between two samples, and each costs more, as the others use the caches, too. What samples cost at
// times (residency snapshots, readings of shared pages) has limits of its own.
class Pace {
public:
    static constexpr std::uint64_t kShortestNs = 1'000'000, kUsualNs = 10'000'000, kLongestNs = 50'000'000;
    static constexpr double kBurstNs = 4'000'000, kShare = 200, kClockShare = 2'000, kBusyShare = 64,
                            kLeastCostNs = 1'000;

    // What the processors did until now.
    struct Used {
        std::uint64_t own_ns;  // for the thread, since it began
        std::uint64_t program_ns;
    };

    Pace(std::uint64_t now, Used used) noexcept : at_ns_(now), used_(used) {}

    // Nanoseconds until then. While a short program's workers wait for each other's processors, a sample each
    // millisecond would cost them 2 %. A long recording's timeline has no room for more points. A program that rests,
    // as workers without work do, has little to be seen. But near a limit there may be no time to notice that it comes
    // nearer.
    std::uint64_t next(std::uint64_t now, Used used, bool is_near_limit) noexcept {
        note(now, used);
        const std::uint64_t shortest = std::clamp(now / 16, kShortestNs, kUsualNs);
        if (is_near_limit) return shortest;
        return std::clamp(std::max({now / 2048, rest_ns_, affordable_ns()}), shortest, kLongestNs);
    }

    bool rests() const noexcept { return rest_ns_ != 0; }
    void end_rest() noexcept { rest_ns_ = 0; }

private:
    void note(std::uint64_t now, Used used) noexcept {
        // The clocks are read one after the other: what the program used may seem to be less than before.
        used.program_ns = std::max(used.program_ns, used_.program_ns);
        const auto passed_ns = static_cast<double>(now - at_ns_);
        const auto program_ns = static_cast<double>(used.program_ns - used_.program_ns);
        rest_ns_ = program_ns * kBusyShare < passed_ns ? std::clamp(2 * rest_ns_, kUsualNs, kLongestNs) : 0;
        if (passed_ns > 0) program_part_ += (program_ns / passed_ns - program_part_) / 4;
        cost_ns_ = std::min(static_cast<double>(used.own_ns - used_.own_ns), 2 * cost_ns_ + kLeastCostNs);
        credit_ns_ += program_ns / kShare + passed_ns / kClockShare - cost_ns_;
        credit_ns_ = std::clamp(credit_ns_, -kBurstNs, kBurstNs);
        at_ns_ = now;
        used_ = used;
    }
    std::uint64_t affordable_ns() const noexcept {
        if (credit_ns_ > 0) return 0;
        const double ns = cost_ns_ * kShare / std::max(program_part_, 1 / kBusyShare);
        return static_cast<std::uint64_t>(std::min(ns, static_cast<double>(kLongestNs)));
    }

    std::uint64_t at_ns_, rest_ns_ = 0;
    Used used_;
    double program_part_ = 1;  // of one processor, of late
    double cost_ns_ = 0;       // of a sample that has nothing more to do
    double credit_ns_ = kBurstNs;
};

}  // namespace hiwater
