// What the hooks read before they call the recorder: whether and how it records.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/cache_lines.h"
#include "base/compare_word.h"
#include "stacks/thread_state.h"

namespace hiwater {

enum class Mode : std::uint32_t { off = 0, on = 1, counting_losses = 2 };

// Whether small blocks are sampled. Changes only while the mode is off.
extern std::atomic<bool> g_sampled;
inline bool sampled() noexcept { return g_sampled.load(std::memory_order_relaxed); }
// Mode and sampling in one word, for the hooks of the most frequent events. few_samples: so few small blocks are
// sampled that each of them can come from malloc. The order of the values lets one comparison distinguish them.
enum class Wanted : std::uint32_t { slow_path = 0, every_block = 1, few_samples = 2 };
// Up to this size CPython's own allocator never calls malloc.
inline constexpr std::size_t kSmallObject = 512;
// The same and the size in one comparison: objects below the bound take the fast path. A bound is 0 while its value of
// Wanted is not set.
struct SmallBelow {
    std::atomic<std::size_t> every_block, few_samples;
};

// What hooks read first. It has a page of its own, which the kernel clears in the child of any kind of fork: nothing is
// recorded there from the first instruction on.
struct alignas(platform::kPageBytes) Switches {
    std::byte before[kLine];  // see cache_lines.h
    std::atomic<Mode> mode;
    std::atomic<Wanted> wanted;
    SmallBelow small_below;
    std::atomic<bool> python_is_asked;  // see Recorder::ask_python()
    // Recorder::epoch_ while blocks are recorded and no meter reads the heap's peaks, else 0: one comparison instead of
    // three.
    std::atomic<std::uint32_t> plain_epoch;
};
extern Switches g_switches;
inline bool recording() noexcept { return g_switches.mode.load(std::memory_order_relaxed) != Mode::off; }
inline Wanted wanted() noexcept { return g_switches.wanted.load(std::memory_order_relaxed); }
inline bool wants(Wanted what) noexcept { return holds(g_switches.wanted, what); }
// Whether a call reports its memory itself: not where Python's own allocator, which made the call, reports it.
inline bool watching() noexcept { return recording() && tls.covered == 0; }
// The bytes of calloc() and its like: more than there is where the product does not fit.
inline std::size_t product(std::size_t count, std::size_t each) noexcept {
    std::size_t bytes = 0;
    return __builtin_mul_overflow(count, each, &bytes) ? SIZE_MAX : bytes;
}
inline bool python_is_asked() noexcept { return g_switches.python_is_asked.load(std::memory_order_relaxed); }

}  // namespace hiwater
