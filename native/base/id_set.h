// A hash set of record numbers. The records lie elsewhere (in the capture); the set holds 8 bytes for each, the number and half of its
// hash, and asks its owner for equality only where the halves agree: a search seldom touches a record that it does not want, and the
// set grows without touching any. Number 0 is never in a set.
#pragma once

#include <cstdint>

#include "base/pages.h"

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
        const auto half = static_cast<std::uint32_t>(hash);
        for (std::size_t i = half & mask;; i = (i + 1) & mask) {
            const Slot slot = slots_[i];
            if (slot.id == 0 || (slot.half == half && same(slot.id))) return slot.id;
        }
    }

    // Adds a number that is not in the set.
    void add(std::uint32_t id, std::uint64_t hash) {
        if ((count_ + 1) * 10 > slots_.size() * 6) grow();
        place(slots_, {id, static_cast<std::uint32_t>(hash)});
        ++count_;
    }

    // Takes out a number that is in the set, with the hash that it was added with. Entries shift back, so there are no tombstones.
    void remove(std::uint32_t id, std::uint64_t hash) {
        const std::size_t mask = slots_.size() - 1;
        std::size_t hole = static_cast<std::uint32_t>(hash) & mask;
        while (slots_[hole].id != id) hole = (hole + 1) & mask;
        for (std::size_t i = (hole + 1) & mask; slots_[i].id != 0; i = (i + 1) & mask) {
            const std::size_t from_home = (i - slots_[i].half) & mask, from_hole = (i - hole) & mask;
            if (from_home < from_hole) continue;
            slots_[hole] = slots_[i];
            hole = i;
        }
        slots_[hole] = {};
        --count_;
    }

    std::size_t size() const { return count_; }
    void reset() noexcept {
        slots_.reset();
        count_ = 0;
    }
    std::size_t own_bytes() const { return slots_.capacity_bytes(); }

private:
    struct Slot {
        std::uint32_t id, half;
    };

    static void place(PageVector<Slot>& slots, Slot slot) {
        const std::size_t mask = slots.size() - 1;
        std::size_t i = slot.half & mask;
        while (slots[i].id != 0) i = (i + 1) & mask;
        slots[i] = slot;
    }

    void grow() {
        PageVector<Slot> bigger;
        bigger.resize(slots_.size() == 0 ? 1024 : slots_.size() * 2);
        bigger.touch();
        for (std::size_t i = 0; i < slots_.size(); ++i)
            if (slots_[i].id != 0) place(bigger, slots_[i]);
        slots_.swap(bigger);
    }

    PageVector<Slot> slots_;  // a power of two, at most 2^32
    std::size_t count_ = 0;
};

}  // namespace hiwater
