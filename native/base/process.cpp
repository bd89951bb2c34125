#include "base/process.h"

#include <time.h>

#include "base/raw_calls.h"

namespace hiwater::process {

namespace {

std::uint64_t clock_ns(clockid_t clock) noexcept {
    timespec t{};
    ::clock_gettime(clock, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000ULL + static_cast<std::uint64_t>(t.tv_nsec);
}

}  // namespace

bool is_main_thread() noexcept { return platform::is_main_thread(); }

std::uint64_t monotonic_ns() noexcept { return clock_ns(CLOCK_MONOTONIC); }
std::uint64_t coarse_monotonic_ns() noexcept { return clock_ns(platform::kCoarseClock); }
std::uint64_t wall_ns() noexcept { return clock_ns(CLOCK_REALTIME); }
std::uint64_t process_ns() noexcept { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }
std::uint64_t thread_ns() noexcept { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }

bool was_delayed(std::uint64_t from_ns, std::uint64_t used_ns) noexcept {
    constexpr std::uint64_t kMostDelayNs = 2'000'000;
    return monotonic_ns() - from_ns > kMostDelayNs + 2 * used_ns;
}

}  // namespace hiwater::process
