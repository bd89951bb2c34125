// Which small blocks are recorded in sampled mode, and for how much each of them then stands.
//
// A thread's allocations of blocks below `sample_bytes` (S) form streams of bytes. A stream is divided into cells of S
// bytes, the first of them beginning at a random place. In each cell one byte is sampled, each of the S with the same
// probability. A block that contains a sampled byte is recorded. A block of n bytes (n < S) lies either in one cell,
// whose sampled byte is in the block with probability n/S, or in two cells, with a bytes in one and n - a in the other,
// for each a from 1 to n - 1 with probability 1/S: then it may contain both sampled bytes. So
//
//   P(n) = n/S - sum over a of a (n - a) / S^3 = n/S - (n^3 - n) / (6 S^3)
//
// and a recorded block stands for n/P(n) bytes in 1/P(n) blocks, which makes every sum unbiased (D. Horvitz, D.
// Thompson, "A generalization of sampling without replacement", 1952). The sampled bytes of different cells are
// independent and each cell has only one, so no two blocks are recorded together more often than by chance: the
// variance of a sum is at most that of independent sampling, which is n^2 (1 - P)/P <= n S for each block and S times
// the sum altogether, whatever the pattern of allocations. For blocks that stay live, one after another, it is far
// lower: this is stratified sampling. All blocks of S bytes and more are recorded, and stand for themselves.
#pragma once

#include <algorithm>
#include <cstddef>
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

// The sampled bytes of one stream.
struct Cells {
    std::uint64_t sampled = 0;  // the sampled byte of the present cell: 0 .. S - 1
    std::int64_t beyond = 0;    // bytes up to the next sampled byte that are not granted yet
    std::int64_t granted = 0;   // since the stream began; 0: it has not

    static std::uint64_t any(Random& random, std::uint64_t below) noexcept {
        return static_cast<std::uint64_t>(random.uniform() * static_cast<double>(below));
    }
    // Bytes from one sampled byte to the next.
    std::int64_t next(Random& random, std::uint64_t sample_bytes) noexcept {
        const std::uint64_t before = sampled;
        sampled = any(random, sample_bytes);
        return static_cast<std::int64_t>(sample_bytes - before + sampled);
    }
    // Bytes from the beginning of the stream up to and including the first sampled byte.
    std::int64_t first(Random& random, std::uint64_t sample_bytes) noexcept {
        const std::uint64_t place = any(random, sample_bytes);
        sampled = any(random, sample_bytes);
        if (sampled >= place) return static_cast<std::int64_t>(sampled - place) + 1;
        const auto passed = static_cast<std::int64_t>(sampled) - static_cast<std::int64_t>(place) + 1;  // not positive
        return passed + next(random, sample_bytes);
    }

    // How many bytes may pass before the next check: S at most, so that no block of S bytes and more passes unchecked.
    std::int64_t grant(std::int64_t to_sampled, std::uint64_t sample_bytes) noexcept {
        beyond = std::max<std::int64_t>(0, to_sampled - static_cast<std::int64_t>(sample_bytes));
        return to_sampled - beyond;
    }
    // The granted bytes have passed: grants more. Returns whether a sampled byte was among those that passed.
    bool renew(std::int64_t* left, Random& random, std::uint64_t sample_bytes) noexcept {
        const std::int64_t before = *left;
        if (granted == 0) *left += grant(first(random, sample_bytes), sample_bytes);
        bool reached = false;
        while (*left <= 0) {
            if (beyond > 0) {
                *left += beyond;
                beyond = 0;
            } else {
                reached = true;
                *left += grant(next(random, sample_bytes), sample_bytes);
            }
        }
        granted += *left - before;
        return reached;
    }
};

// Each thread has a stream for each size up to kLargestEqual, and one for the others. Long-lived and temporary objects
// often differ in size, and in separate streams they disturb each other's figures less. And of equal blocks the bytes
// say how many there were.
inline constexpr std::size_t kLargestEqual = 512, kStreams = kLargestEqual + 2;
inline std::size_t stream_of(std::size_t bytes) noexcept { return std::min(bytes, kStreams - 1); }

inline double probability(std::uint64_t bytes, std::uint64_t sample_bytes) noexcept {
    if (bytes >= sample_bytes) return 1;
    const auto n = static_cast<double>(bytes), s = static_cast<double>(sample_bytes);
    return n / s - (n * n * n - n) / (6 * s * s * s);
}

struct Weight {
    std::int64_t bytes, blocks;
};
// What a recorded block stands for. The same at its allocation and its free, because it depends on nothing but the
// size.
inline Weight weight(std::uint64_t bytes, std::uint64_t sample_bytes) noexcept {
    if (bytes >= sample_bytes) return {static_cast<std::int64_t>(bytes), 1};
    if (bytes == 0) return {0, 1};
    const double p = probability(bytes, sample_bytes);
    return {static_cast<std::int64_t>(static_cast<double>(bytes) / p + 0.5), static_cast<std::int64_t>(1 / p + 0.5)};
}

}  // namespace hiwater::sampling
