// The recorded blocks of sampled mode, by address: few, so a hash table holds them; and before it a filter that most
// frees end at.
//
//   filter   one byte for each 512 bytes of address space: how many recorded blocks start in it (255: at least so
//            many, and for good)
//   table    by the hash of the address
//
// The filter is read without the lock by the thread that frees a block: the count for that thread's own block was
// written before the block was handed out. All else is under the recorder's lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>

#include "base/open_table.h"
#include "base/page_stock.h"
#include "heap/live_table.h"

namespace hiwater {

class SampleTable {
    static std::uint64_t hash_of(std::uintptr_t address) noexcept {
        return (address >> 4) * 0x9e3779b97f4a7c15ULL >> 20;
    }
    struct Entry {
        std::uintptr_t address;
        std::uint64_t bytes;
        std::uint32_t account;
        bool is_free() const { return address == 0; }
        std::uint64_t hash() const { return hash_of(address); }
        Block block() const { return {account, bytes}; }
    };
    static auto is_at(std::uintptr_t address) noexcept {
        return [address](const Entry& entry) { return entry.address == address; };
    }

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
        ::new (static_cast<void*>(&entries_)) OpenTable<Entry>();
        filters_.give_pages_back();
    }

    // Whether a recorded block may start at the address. Any thread, for a block of its own.
    [[gnu::always_inline]] bool may_hold(std::uintptr_t address) const noexcept {
        return __atomic_load_n(&filter_at(address)->count[span_of(address)], __ATOMIC_RELAXED) != 0;
    }

    // A block that was there was freed behind our back, and is returned. Throws bad_alloc.
    Block insert(std::uintptr_t address, std::uint64_t bytes, std::uint32_t account) {
        Filter* const filter = filter_for(address);
        const Entry stale = entries_.put({address, bytes, account}, is_at(address));
        if (stale.is_free()) change_count(*filter, address, 1);
        return stale.block();
    }

    Block find_block(std::uintptr_t address) const noexcept {
        const Entry* entry = entries_.find(hash_of(address), is_at(address));
        return entry == nullptr ? Block{} : entry->block();
    }

    // Takes a block out; account 0 when none starts there.
    Block remove(std::uintptr_t address) noexcept {
        const Entry removed = entries_.remove(hash_of(address), is_at(address));
        if (!removed.is_free()) change_count(*filter_at(address), address, -1);
        return removed.block();
    }

    template <typename Visit>  // visit(address, block)
    void each(Visit visit) const {
        entries_.each([&](const Entry& entry) { visit(entry.address, entry.block()); });
    }

    std::size_t size() const { return entries_.size(); }
    std::size_t own_bytes() const { return entries_.own_bytes() + filters_.bytes(); }

    // Forgets every block. The filter's pages stay mapped: another thread may be about to read it.
    void empty() noexcept {
        entries_.reset();
        filters_.give_pages_back();
    }

    // O(everything). Every block is found where it belongs, and the filter counts each.
    bool is_consistent() const {
        std::size_t found = 0, counted = 0;
        bool full = false;
        entries_.each([&](const Entry& entry) {
            found += entries_.find(entry.hash(), is_at(entry.address)) == &entry && may_hold(entry.address);
        });
        filters_.each([&](const void* filter) {
            for (const std::uint8_t count : static_cast<const Filter*>(filter)->count) {
                counted += count;
                full = full || count == kFull;
            }
        });
        return found == size() && (full || counted == size());
    }

private:
    // A part has the filters of 128 GiB, as pointers: programs have memory in a few places that are far apart, and
    // address space may be limited (`ulimit -v`).
    static constexpr unsigned kPartShift = 37, kStretchShift = 26, kSpanShift = 9;
    static constexpr std::size_t kParts = std::size_t{1} << (kAddressBits - kPartShift);
    static constexpr std::size_t kFilters = std::size_t{1} << (kPartShift - kStretchShift),
                                 kPartBytes = kFilters * sizeof(void*);
    static constexpr std::uint8_t kFull = 255;

    struct Filter {
        std::uint8_t count[std::size_t{1} << (kStretchShift - kSpanShift)];
    };
    static inline constinit Filter no_filter_{};              // where no recorded block ever was
    static inline constinit Filter* no_part_[kFilters] = {};  // the same for a whole part
    static std::size_t span_of(std::uintptr_t address) noexcept {
        return (address >> kSpanShift) % (std::size_t{1} << (kStretchShift - kSpanShift));
    }
    static void change_count(Filter& filter, std::uintptr_t address, int by) noexcept {
        std::uint8_t& count = filter.count[span_of(address)];
        if (count != kFull) __atomic_store_n(&count, static_cast<std::uint8_t>(count + by), __ATOMIC_RELAXED);
    }

    // Of an address that no user can have the answer is as good.
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

    Filter** parts_[kParts] = {};
    PageStock filters_{sizeof(Filter)};
    OpenTable<Entry> entries_;
};

}  // namespace hiwater
