// The recorded blocks of sampled mode, by address: few, so a hash table holds them; and before it a filter that most frees end at.
//
//   filter   one byte for each 512 bytes of address space: how many recorded blocks start in it (255: at least so many, and for good)
//   table    open addressing, at most half full, grown by doubling
//
// The filter is read without the lock by the thread that frees a block: the count for that thread's own block was written before the
// block was handed out. All else is under the recorder's lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>

#include "base/page_stock.h"
#include "heap/live_table.h"

namespace hiwater {

class SampleTable {
public:
    ~SampleTable() {
        for (Filter** part : parts_)
            if (part != no_part_) unmap_pages(part, kPartBytes);
    }

    void init() noexcept {
        if (parts_[0] != nullptr) return;
        std::fill(std::begin(no_part_), std::end(no_part_), &no_filter_);
        for (Filter**& part : parts_) part = no_part_;
    }

    // In the child of a fork: what is under the lock is gone already.
    void forget_in_child() noexcept {
        ::new (static_cast<void*>(&entries_)) PageVector<Entry>();
        used_ = 0;
        filters_.give_pages_back();
    }

    // Whether a recorded block may start at the address. Any thread, for a block of its own.
    [[gnu::always_inline]] bool may_hold(std::uintptr_t address) const noexcept {
        return __atomic_load_n(&filter_at(address)->count[span_of(address)], __ATOMIC_RELAXED) != 0;
    }

    // A block that was there was freed behind our back, and is returned. Throws bad_alloc.
    Block insert(std::uintptr_t address, std::uint64_t bytes, std::uint32_t account) {
        if (2 * (used_ + 1) > entries_.size()) grow();
        Filter* const filter = filter_for(address);
        Entry& entry = place_of(address);
        Block stale;
        if (entry.address != 0) {
            stale = {entry.account, entry.bytes};
        } else {
            ++used_;
            std::uint8_t& count = filter->count[span_of(address)];
            if (count != kFull) __atomic_store_n(&count, static_cast<std::uint8_t>(count + 1), __ATOMIC_RELAXED);
        }
        entry = {address, bytes, account};
        return stale;
    }

    Block find_block(std::uintptr_t address) const noexcept {
        if (entries_.size() == 0) return {};
        const Entry& entry = place_of(address);
        return entry.address == 0 ? Block{} : Block{entry.account, entry.bytes};
    }

    // Takes a block out; account 0 when none starts there.
    Block remove(std::uintptr_t address) noexcept {
        if (entries_.size() == 0) return {};
        Entry& entry = place_of(address);
        if (entry.address == 0) return {};
        const Block block{entry.account, entry.bytes};
        std::uint8_t& count = filter_at(address)->count[span_of(address)];
        if (count != kFull) __atomic_store_n(&count, static_cast<std::uint8_t>(count - 1), __ATOMIC_RELAXED);
        close_gap(static_cast<std::size_t>(&entry - entries_.begin()));
        --used_;
        return block;
    }

    template <typename Visit>  // visit(address, block)
    void each(Visit visit) const {
        for (const Entry& entry : entries_)
            if (entry.address != 0) visit(entry.address, Block{entry.account, entry.bytes});
    }

    std::size_t size() const { return used_; }
    std::size_t own_bytes() const { return entries_.capacity_bytes() + filters_.bytes(); }

    // Forgets every block. The filter's pages stay mapped: another thread may be about to read it.
    void empty() noexcept {
        entries_.reset();
        used_ = 0;
        filters_.give_pages_back();
    }

    // O(everything). Every block is found where it belongs, and the filter counts each.
    bool is_consistent() const {
        std::size_t found = 0, counted = 0;
        bool full = false;
        for (const Entry& entry : entries_) {
            if (entry.address == 0) continue;
            ++found;
            if (&place_of(entry.address) != &entry || !may_hold(entry.address)) return false;
        }
        filters_.each([&](const void* filter) {
            for (const std::uint8_t count : static_cast<const Filter*>(filter)->count) {
                counted += count;
                full = full || count == kFull;
            }
        });
        return found == used_ && (full || counted == used_);
    }

private:
    // A part has the filters of 128 GiB, as pointers: programs have memory in a few places that are far apart, and address space may be
    // limited (`ulimit -v`).
    static constexpr unsigned kPartShift = 37, kStretchShift = 26, kSpanShift = 9, kAddressBits = 47;
    static constexpr std::size_t kParts = std::size_t{1} << (kAddressBits - kPartShift);
    static constexpr std::size_t kFilters = std::size_t{1} << (kPartShift - kStretchShift), kPartBytes = kFilters * sizeof(void*);
    static constexpr std::uint8_t kFull = 255;

    struct Filter {
        std::uint8_t count[std::size_t{1} << (kStretchShift - kSpanShift)];
    };
    static inline constinit Filter no_filter_{};              // where no recorded block ever was
    static inline constinit Filter* no_part_[kFilters] = {};  // the same for a whole part
    struct Entry {
        std::uintptr_t address;
        std::uint64_t bytes;
        std::uint32_t account;
    };

    static std::size_t span_of(std::uintptr_t address) noexcept {
        return (address >> kSpanShift) % (std::size_t{1} << (kStretchShift - kSpanShift));
    }
    std::size_t home_of(std::uintptr_t address) const noexcept {
        return ((address >> 4) * 0x9e3779b97f4a7c15ULL >> 20) & (entries_.size() - 1);
    }
    // The entry of an address, or the empty one where it would go.
    Entry& place_of(std::uintptr_t address) noexcept {
        return const_cast<Entry&>(static_cast<const SampleTable*>(this)->place_of(address));
    }
    const Entry& place_of(std::uintptr_t address) const noexcept {
        std::size_t i = home_of(address);
        while (entries_[i].address != 0 && entries_[i].address != address) i = (i + 1) & (entries_.size() - 1);
        return entries_[i];
    }

    // Moves up what a removed entry had pushed on (D. Knuth, The Art of Computer Programming, vol. 3, 6.4, algorithm R).
    void close_gap(std::size_t gap) noexcept {
        const std::size_t mask = entries_.size() - 1;
        for (std::size_t i = (gap + 1) & mask; entries_[i].address != 0; i = (i + 1) & mask) {
            const std::size_t from_home = (i - home_of(entries_[i].address)) & mask, from_gap = (i - gap) & mask;
            if (from_home < from_gap) continue;
            entries_[gap] = entries_[i];
            gap = i;
        }
        entries_[gap] = {};
    }

    void grow() {
        PageVector<Entry> old;
        PageVector<Entry> wider;
        wider.resize(entries_.size() == 0 ? kFirstEntries : 2 * entries_.size());
        old.swap(entries_);
        entries_.swap(wider);
        for (const Entry& entry : old)
            if (entry.address != 0) place_of(entry.address) = entry;
    }

    // A user's address lies below 2^47; of any other the answer is as good.
    [[gnu::always_inline]] Filter** place_of_filter(std::uintptr_t address) const noexcept {
        Filter** const part = __atomic_load_n(&parts_[(address >> kPartShift) % kParts], __ATOMIC_ACQUIRE);
        return part + (address >> kStretchShift) % kFilters;
    }
    [[gnu::always_inline]] Filter* filter_at(std::uintptr_t address) const noexcept {
        return __atomic_load_n(place_of_filter(address), __ATOMIC_ACQUIRE);
    }
    Filter* filter_for(std::uintptr_t address) {
        if (Filter* const known = filter_at(address); known != &no_filter_) return known;
        Filter**& part = parts_[(address >> kPartShift) % kParts];
        if (part == no_part_) {
            auto* const fresh = static_cast<Filter**>(map_pages(kPartBytes));
            if (fresh == nullptr) throw std::bad_alloc();
            std::fill(fresh, fresh + kFilters, &no_filter_);
            __atomic_store_n(&part, fresh, __ATOMIC_RELEASE);
        }
        auto* const fresh = static_cast<Filter*>(filters_.take());
        if (fresh == nullptr) throw std::bad_alloc();
        __atomic_store_n(place_of_filter(address), fresh, __ATOMIC_RELEASE);
        return fresh;
    }

    static constexpr std::size_t kFirstEntries = 4096;

    Filter** parts_[kParts] = {};
    PageStock filters_{sizeof(Filter)};
    PageVector<Entry> entries_;
    std::size_t used_ = 0;
};

}  // namespace hiwater
