// A ceiling on the program's address space, as `ulimit -v` sets it, that the recorder's own pages do not count against: the soft limit
// moves with them.
#pragma once

#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hiwater {

class OwnLimit {
public:
    // From now on the program may have `bytes` of address space. Returns false where the hard limit is lower, or it is refused.
    bool set(std::uint64_t bytes) noexcept {
        bytes_.store(bytes, std::memory_order_relaxed);
        set_.store(0, std::memory_order_relaxed);
        return apply();
    }
    // Before pages of our own are mapped, and after they are gone. No locks: other threads may do the same, and the last is right.
    void add(std::size_t bytes) noexcept {
        own_.fetch_add(bytes, std::memory_order_relaxed);
        if (bytes_.load(std::memory_order_relaxed) != 0) apply();
    }
    void remove(std::size_t bytes) noexcept {
        own_.fetch_sub(bytes, std::memory_order_relaxed);
        if (bytes_.load(std::memory_order_relaxed) != 0) apply();
    }
    // What the program may have, of the soft limit in force; -1 where there is none.
    std::int64_t in_force() const noexcept {
        rlimit now{};
        if (::getrlimit(RLIMIT_AS, &now) != 0 || now.rlim_cur == RLIM_INFINITY) return -1;
        const bool ours = bytes_.load(std::memory_order_relaxed) != 0 && now.rlim_cur == set_.load(std::memory_order_relaxed);
        return static_cast<std::int64_t>(ours ? bytes_.load(std::memory_order_relaxed) : now.rlim_cur);
    }
    std::uint64_t own_bytes() const noexcept { return own_.load(std::memory_order_relaxed); }

private:
    static constexpr std::uint64_t kModules = 8 << 20;  // what hiwater's library and its Python modules take

    bool apply() noexcept {
        rlimit limit{};
        if (::getrlimit(RLIMIT_AS, &limit) != 0) return false;
        const rlim_t last = set_.load(std::memory_order_relaxed);
        if (last != 0 && limit.rlim_cur != last) {  // the program has set one of its own since: that one holds
            bytes_.store(0, std::memory_order_relaxed);
            return true;
        }
        limit.rlim_cur = bytes_.load(std::memory_order_relaxed) + own_.load(std::memory_order_relaxed);
        set_.store(limit.rlim_cur, std::memory_order_relaxed);
        return ::setrlimit(RLIMIT_AS, &limit) == 0;
    }

    std::atomic<std::uint64_t> bytes_{0};  // 0: no ceiling of ours
    std::atomic<std::uint64_t> own_{kModules};
    std::atomic<rlim_t> set_{0};
};

inline constinit OwnLimit own_limit;

}  // namespace hiwater
