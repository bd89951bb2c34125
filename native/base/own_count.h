// Counts that one thread changes and others read: plain memory to its owner. Where the processor changes memory in one
// instruction, that is one here, too; of an atomic that is loaded and stored a compiler makes three.
#pragma once

#include <atomic>
#include <cstdint>

namespace hiwater {

static_assert(sizeof(std::atomic<std::uint64_t>) == sizeof(std::uint64_t));

inline void count_one(std::atomic<std::uint64_t>& count) noexcept {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    asm("incq %0" : "+m"(reinterpret_cast<std::uint64_t&>(count)) : : "cc");
#else
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
#endif
}

// Returns whether anything is left.
inline bool take_from(std::atomic<std::int64_t>& left, std::int64_t amount) noexcept {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    bool is_left;
    asm("subq %2, %0" : "+m"(reinterpret_cast<std::int64_t&>(left)), "=@ccg"(is_left) : "er"(amount) : "cc");
    return is_left;
#else
    const std::int64_t rest = left.load(std::memory_order_relaxed) - amount;
    left.store(rest, std::memory_order_relaxed);
    return rest > 0;
#endif
}

}  // namespace hiwater
