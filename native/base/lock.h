// A small futex lock. Holders run a few dozen instructions, never foreign code, and take no other lock.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace hiwater {

class Lock {
public:
    void lock() noexcept {
        std::uint32_t expected = kFree;
        if (!word_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed)) [[unlikely]] {
            lock_slowly();
        }
    }
    void unlock() noexcept {
        if (word_.exchange(kFree, std::memory_order_release) == kWaited) [[unlikely]] wake_one();
    }
    // For the child of a fork, where the holder's thread may not exist.
    void reset() noexcept { word_.store(kFree, std::memory_order_relaxed); }

private:
    static constexpr std::uint32_t kFree = 0, kHeld = 1, kWaited = 2;

    [[gnu::noinline]] void lock_slowly() noexcept {
        for (int spin = 0; spin < 200; ++spin) {
            std::uint32_t expected = kFree;
            if (word_.load(std::memory_order_relaxed) == kFree &&
                word_.compare_exchange_weak(expected, kHeld, std::memory_order_acquire, std::memory_order_relaxed))
                return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        while (word_.exchange(kWaited, std::memory_order_acquire) != kFree) {
            ::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, kWaited, nullptr, nullptr, 0);
        }
    }
    [[gnu::noinline]] void wake_one() noexcept { ::syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

    std::atomic<std::uint32_t> word_{kFree};
};

class Hold {
public:
    explicit Hold(Lock& lock) noexcept : lock_(lock) { lock_.lock(); }
    ~Hold() { lock_.unlock(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

private:
    Lock& lock_;
};

}  // namespace hiwater
