// A hash table in pages of its own: open addressing, doubled while it is small and grown by a half then. Entries
// shift back at a removal (D. Knuth, The Art of Computer Programming, vol. 3, 6.4, algorithm R), so there are no
// tombstones. A place is the hash scaled to the table's size (D. Lemire, Fast Random Integer Generation in an Interval,
// 2019): any size will do, and growth keeps the order of the slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/pages.h"

namespace hiwater {

inline std::uint64_t mix(std::uint64_t x) noexcept {  // finaliser of splitmix64 (Steele, Lea, Flood 2014)
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

// A slot is plain bytes, with hash(), whose lower 32 bits count, and is_free(); one of zeros is free. `is_it(slot)`
// tells which slot is meant, of those with the hash.
template <typename Slot>
class OpenTable {
public:
    // Null where there is none.
    template <typename IsIt>
    const Slot* find(std::uint64_t hash, IsIt is_it) const {
        if (slots_.size() == 0) return nullptr;
        const Slot& found = slots_[place_of(hash, is_it)];
        return found.is_free() ? nullptr : &found;
    }

    // Puts a slot in, and returns the one whose place it takes, or a free one. Throws bad_alloc; the table then is as
    // before.
    template <typename IsIt>
    Slot put(const Slot& slot, IsIt is_it) {
        if ((count_ + 1) * 3 > slots_.size() * 2) grow();
        const Slot before = std::exchange(slots_[place_of(slot.hash(), is_it)], slot);
        if (before.is_free()) ++count_;
        return before;
    }

    // Takes a slot out and returns it, or a free one where there is none.
    template <typename IsIt>
    Slot remove(std::uint64_t hash, IsIt is_it) noexcept {
        if (slots_.size() == 0) return {};
        std::size_t hole = place_of(hash, is_it);
        const Slot removed = slots_[hole];
        if (removed.is_free()) return removed;
        for (std::size_t i = next(hole); !slots_[i].is_free(); i = next(i)) {
            if (distance(home(slots_[i].hash()), i) < distance(hole, i)) continue;
            slots_[hole] = slots_[i];
            hole = i;
        }
        slots_[hole] = {};
        --count_;
        return removed;
    }

    template <typename Visit>  // visit(slot)
    void each(Visit visit) const {
        for (const Slot& slot : slots_)
            if (!slot.is_free()) visit(slot);
    }

    std::size_t size() const { return count_; }
    std::size_t own_bytes() const { return slots_.capacity_bytes(); }
    void reset() noexcept {
        slots_.reset();
        count_ = 0;
    }

private:
    static constexpr std::size_t kFirst = 1024, kTogether = 8;  // slots
    static constexpr std::size_t kDoubledBytes = 1 << 20;

    // The lowest bits choose one of eight neighbours, so that hashes which differ in these alone lie in one or two
    // lines of the cache.
    std::size_t home(std::uint64_t hash) const {
        const std::uint64_t scaled =
            ((hash & 0xffffffff) / kTogether) * (slots_.size() / kTogether) / ((std::uint64_t{1} << 32) / kTogether);
        return scaled * kTogether + hash % kTogether;
    }
    std::size_t next(std::size_t i) const { return i + 1 == slots_.size() ? 0 : i + 1; }
    std::size_t distance(std::size_t from, std::size_t to) const {
        return to >= from ? to - from : to + slots_.size() - from;
    }
    // Of the slot that is meant, or of the free one where it would be.
    template <typename IsIt>
    std::size_t place_of(std::uint64_t hash, IsIt is_it) const {
        std::size_t i = home(hash);
        while (!slots_[i].is_free() && !is_it(slots_[i])) i = next(i);
        return i;
    }

    // In place, from the last slot to the first: a slot's place is never lower in a larger table, so what has been put
    // is not met again, and there are never two tables in memory. What belongs into the part that is still to be read,
    // which are some of the first slots and what had no room at the end, waits aside.
    void grow() {
        const std::size_t had = slots_.size(), more = had * sizeof(Slot) < kDoubledBytes ? had : had / 2;
        PageVector<Slot> aside;
        aside.make_room(had);  // address space: nothing can fail once slots move
        slots_.grow_to(had == 0 ? kFirst : round_up(had + more, kFirst));
        slots_.put_pages_for(had, slots_.size());
        for (std::size_t i = had; i-- > 0;) {
            if (slots_[i].is_free()) continue;
            const Slot slot = std::exchange(slots_[i], {});
            std::size_t place = home(slot.hash());
            const bool is_read = place >= i;
            while (is_read && place < slots_.size() && !slots_[place].is_free()) ++place;
            if (is_read && place < slots_.size())
                slots_[place] = slot;
            else
                aside.push_back(slot);
        }
        for (const Slot& slot : aside) slots_[place_of(slot.hash(), [](const Slot&) { return false; })] = slot;
    }

    PageVector<Slot> slots_;  // at most 2^32
    std::size_t count_ = 0;
};

}  // namespace hiwater
