// Which small blocks are recorded in sampled mode, and for how much each of them then stands.
//
// Every thread's allocations of blocks below `sample_bytes` (S) are a stream of bytes. Points are thrown on it, S apart on average: the
// distances are independent and uniform in [S/2, 3S/2], and the first is what remains of such a distance at a random place in it. So
// the points are stationary: any n bytes of the stream, wherever they lie, hold n/S points on average. A block that holds a point is
// recorded. Two points are at least S/2 apart, so for a block of n bytes
//
//   P(n) = n/S                             for n <= S/2
//   P(n) = n/S - (n - S/2)^2 / (2 S^2)     for S/2 < n < S: less what would be counted twice (a second point, if the first lies at x,
//                                          is in it with probability (n - x - S/2)/S; integrate over x with density 1/S)
//
// and recorded, it stands for n/P(n) bytes in 1/P(n) blocks, which makes every sum unbiased (Horvitz and Thompson, 1952). The bytes of
// blocks that hold a point differ from those of a Poisson process only in being spaced more evenly: the variance of a sum over blocks
// that come in random order is at most that of independent draws, n^2 (1-P)/P <= n S for each block, or S times the sum in all.
// Blocks of S bytes and more are all recorded, and stand for themselves.
#pragma once

#include <cstdint>

namespace hiwater::sampling {

// Random numbers of one thread (xorshift64*, S. Vigna 2016).
struct Random {
    std::uint64_t state = 0;
    std::uint64_t next() noexcept {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * 0x2545f4914f6cdd1dULL;
    }
    double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }  // in [0, 1)
};

inline std::int64_t distance(Random& random, std::uint64_t sample_bytes) noexcept {
    return static_cast<std::int64_t>((0.5 + random.uniform()) * static_cast<double>(sample_bytes)) + 1;
}

// From any place in the stream to the next point: a long distance is more likely to be the one that lies over a random place.
inline std::int64_t first_distance(Random& random, std::uint64_t sample_bytes) noexcept {
    for (;;) {
        const double length = 0.5 + random.uniform();
        if (random.uniform() * 1.5 >= length) continue;
        return static_cast<std::int64_t>(random.uniform() * length * static_cast<double>(sample_bytes)) + 1;
    }
}

inline double probability(std::uint64_t bytes, std::uint64_t sample_bytes) noexcept {
    if (bytes >= sample_bytes) return 1;
    const double x = static_cast<double>(bytes) / static_cast<double>(sample_bytes);
    return x <= 0.5 ? x : x - (x - 0.5) * (x - 0.5) / 2;
}

struct Weight {
    std::int64_t bytes, blocks;
};
// What a recorded block stands for. The same at its end as at its beginning: nothing else is kept of it but its size.
inline Weight weight(std::uint64_t bytes, std::uint64_t sample_bytes) noexcept {
    if (bytes >= sample_bytes) return {static_cast<std::int64_t>(bytes), 1};
    if (bytes == 0) return {0, 1};
    const double p = probability(bytes, sample_bytes);
    return {static_cast<std::int64_t>(static_cast<double>(bytes) / p + 0.5), static_cast<std::int64_t>(1 / p + 0.5)};
}

}  // namespace hiwater::sampling
