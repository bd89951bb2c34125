// A hash set of record numbers. The records lie elsewhere (in the capture); the set holds 4 bytes for each and asks its owner for
// hash and equality, so nothing is stored twice. Number 0 is never in a set.
#pragma once

#include <cstdint>

#include "../base/pages.h"

namespace hiwater {

inline std::uint64_t mix(std::uint64_t x) noexcept {  // finaliser of splitmix64 (Steele, Lea, Flood 2014)
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

class IdSet {
public:
    // The number of the record for which same(number) holds, or 0.
    template <typename Same>
    std::uint32_t find(std::uint64_t hash, Same same) const {
        if (slots_.size() == 0) return 0;
        const std::size_t mask = slots_.size() - 1;
        for (std::size_t i = hash & mask;; i = (i + 1) & mask) {
            const std::uint32_t id = slots_[i];
            if (id == 0 || same(id)) return id;
        }
    }

    // Adds a number that is not in the set. hash_of(number) is asked when the set grows.
    template <typename HashOf>
    void add(std::uint32_t id, std::uint64_t hash, HashOf hash_of) {
        if (slots_.size() == 0 || (count_ + 1) * 10 > slots_.size() * 6) grow(hash_of);
        place(slots_, id, hash);
        ++count_;
    }

    std::size_t size() const { return count_; }
    void reset() noexcept {
        slots_.reset();
        count_ = 0;
    }
    std::size_t own_bytes() const { return slots_.capacity_bytes(); }

private:
    static void place(PageVector<std::uint32_t>& slots, std::uint32_t id, std::uint64_t hash) {
        const std::size_t mask = slots.size() - 1;
        std::size_t i = hash & mask;
        while (slots[i] != 0) i = (i + 1) & mask;
        slots[i] = id;
    }

    template <typename HashOf>
    void grow(HashOf hash_of) {
        PageVector<std::uint32_t> bigger;
        bigger.resize(slots_.size() == 0 ? 1024 : slots_.size() * 2);
        for (std::size_t i = 0; i < slots_.size(); ++i)
            if (slots_[i] != 0) place(bigger, slots_[i], hash_of(slots_[i]));
        slots_.swap(bigger);
    }

    PageVector<std::uint32_t> slots_;  // a power of two
    std::size_t count_ = 0;
};

}  // namespace hiwater
