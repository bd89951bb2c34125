// A ceiling on the program's address space, as `ulimit -v` sets it, that the recorder's own pages do not count against:
// the soft limit moves with them.
#pragma once

#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hiwater {

class OwnLimit {
public:
    // From now on the program may have `bytes` of address space. Returns false where the hard limit is lower, or it is
    // refused.
    bool set(std::uint64_t bytes) noexcept {
        bytes_.store(bytes);
        return apply();
    }
    // Before pages of our own are mapped, and after they are gone. No locks: a child of a fork would keep them.
    void add(std::size_t bytes) noexcept {
        own_.fetch_add(bytes);
        move();
    }
    void remove(std::size_t bytes) noexcept {
        own_.fetch_sub(bytes);
        move();
    }
    // What the program may have, of the soft limit in force (-1 where there is none), and which bytes of ours do not
    // count against it.
    struct InForce {
        std::int64_t limit, uncounted;
    };
    InForce in_force() const noexcept {
        rlimit now{};
        if (::getrlimit(RLIMIT_AS, &now) != 0 || now.rlim_cur == RLIM_INFINITY) return {-1, 0};
        const std::uint64_t bytes = bytes_.load();
        if (bytes == 0 || !is_ours(now.rlim_cur)) return {static_cast<std::int64_t>(now.rlim_cur), 0};
        return {static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(own_.load())};
    }

private:
    static constexpr std::uint64_t kModules = 8 << 20;  // what hiwater's library and its Python modules take
    // The kernel reads whole pages of the limit. The rest tells a limit set here from one that the program has set
    // since, which holds.
    static constexpr rlim_t kRest = 0xfff, kOurs = 0x9a7;

    static bool is_ours(rlim_t limit) noexcept { return (limit & kRest) == kOurs; }
    rlim_t total() const noexcept { return ((bytes_.load() + own_.load()) & ~kRest) | kOurs; }

    void move() noexcept {
        if (bytes_.load() == 0) return;
        rlimit now{};
        if (::getrlimit(RLIMIT_AS, &now) != 0) return;
        is_ours(now.rlim_cur) ? static_cast<void>(apply()) : bytes_.store(0);
    }

    // Threads may do this at once: whichever is last to set the limit finds afterwards that it is the sum.
    bool apply() noexcept {
        rlimit limit{};
        if (::getrlimit(RLIMIT_AS, &limit) != 0) return false;
        do {
            limit.rlim_cur = total();
            if (::setrlimit(RLIMIT_AS, &limit) != 0) return false;
        } while (limit.rlim_cur != total());
        return true;
    }

    std::atomic<std::uint64_t> bytes_{0};  // 0: no ceiling of ours
    std::atomic<std::uint64_t> own_{kModules};
};

inline constinit OwnLimit own_limit;

}  // namespace hiwater
