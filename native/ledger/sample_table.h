// The recorded blocks of sampled mode, by address: few, so a hash table holds them; and before it a filter that most frees end at.
//
//   filter   one byte for each 512 bytes of address space: how many recorded blocks start in it (255: at least so many, and for good)
//   table    open addressing, at most half full, grown by doubling
//
// The filter is read without the lock by the thread that frees a block: what it says of that thread's own block was written before the
// block was handed out. All else is under the recorder's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../base/pages.h"
#include "live_table.h"

namespace hiwater {

class SampleTable {
public:
    SampleTable() = default;
    SampleTable(const SampleTable&) = delete;
    SampleTable& operator=(const SampleTable&) = delete;
    ~SampleTable() {
        forget_filter();
        unmap_pages(pages_, kDirectoryBytes);
    }

    // Reserves the filter's directory: 16 MiB of address space, touched where used.
    bool init() noexcept {
        if (pages_ == nullptr) pages_ = static_cast<Filter**>(map_pages(kDirectoryBytes));
        return pages_ != nullptr;
    }

    // In the child of a fork: what is under the lock is gone already.
    void forget_in_child() noexcept {
        ::new (static_cast<void*>(&filters_)) PageVector<Filter*>();
        ::new (static_cast<void*>(&entries_)) PageVector<Entry>();
        used_ = 0;
        if (pages_ != nullptr) ::madvise(pages_, kDirectoryBytes, MADV_DONTNEED);
    }

    // Whether a recorded block may start at the address. Any thread, for a block of its own.
    [[gnu::always_inline]] bool may_hold(std::uintptr_t address) const noexcept {
        // A user's address lies below 2^47; of any other the answer is as good.
        const Filter* filter = __atomic_load_n(&pages_[(address >> kStretchShift) % kStretches], __ATOMIC_ACQUIRE);
        return filter != nullptr && __atomic_load_n(&filter->count[span_of(address)], __ATOMIC_RELAXED) != 0;
    }

    // A block that was there was freed behind our back, and is returned. Throws bad_alloc.
    Block insert(std::uintptr_t address, std::uint64_t bytes, std::uint32_t ledger) {
        if (2 * (used_ + 1) > entries_.size()) grow();
        Filter* filter = filter_of(address);
        Entry& entry = place_of(address);
        Block stale;
        if (entry.address != 0) {
            stale = {entry.ledger, entry.bytes};
        } else {
            ++used_;
            std::uint8_t& count = filter->count[span_of(address)];
            if (count != kFull) __atomic_store_n(&count, static_cast<std::uint8_t>(count + 1), __ATOMIC_RELAXED);
        }
        entry = {address, bytes, ledger};
        return stale;
    }

    Block look(std::uintptr_t address) const noexcept {
        if (entries_.size() == 0) return {};
        const Entry& entry = place_of(address);
        return entry.address == 0 ? Block{} : Block{entry.ledger, entry.bytes};
    }

    // Takes a block out; ledger 0 when none starts there.
    Block remove(std::uintptr_t address) noexcept {
        if (entries_.size() == 0) return {};
        Entry& entry = place_of(address);
        if (entry.address == 0) return {};
        const Block block{entry.ledger, entry.bytes};
        std::uint8_t& count = pages_[address >> kStretchShift]->count[span_of(address)];
        if (count != kFull) __atomic_store_n(&count, static_cast<std::uint8_t>(count - 1), __ATOMIC_RELAXED);
        close_gap(static_cast<std::size_t>(&entry - entries_.begin()));
        --used_;
        return block;
    }

    template <typename Visit>  // visit(address, block)
    void each(Visit visit) const {
        for (const Entry& entry : entries_)
            if (entry.address != 0) visit(entry.address, Block{entry.ledger, entry.bytes});
    }

    std::size_t size() const { return used_; }
    std::size_t own_bytes() const { return entries_.capacity_bytes() + filters_.size() * sizeof(Filter); }

    // Forgets every block. The filter's pages stay mapped: another thread may be about to look.
    void empty() noexcept {
        entries_.reset();
        used_ = 0;
        for (Filter* filter : filters_) ::madvise(filter, sizeof(Filter), MADV_DONTNEED);
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
        for (const Filter* filter : filters_) {
            for (const std::uint8_t count : filter->count) {
                counted += count;
                full = full || count == kFull;
            }
        }
        return found == used_ && (full || counted == used_);
    }

private:
    static constexpr unsigned kAddressBits = 47, kStretchShift = 26, kSpanShift = 9;
    static constexpr std::size_t kStretches = std::size_t{1} << (kAddressBits - kStretchShift);
    static constexpr std::size_t kDirectoryBytes = kStretches * sizeof(void*);
    static constexpr std::uint8_t kFull = 255;

    struct Filter {
        std::uint8_t count[std::size_t{1} << (kStretchShift - kSpanShift)];
    };
    struct Entry {
        std::uintptr_t address;
        std::uint64_t bytes;
        std::uint32_t ledger;
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

    Filter* filter_of(std::uintptr_t address) {
        const std::uintptr_t number = address >> kStretchShift;
        if (number >= kStretches) throw std::bad_alloc();
        if (pages_[number] != nullptr) return pages_[number];
        auto* fresh = static_cast<Filter*>(map_pages(sizeof(Filter)));
        if (fresh == nullptr) throw std::bad_alloc();
        try {
            filters_.push_back(fresh);
        } catch (...) {
            unmap_pages(fresh, sizeof(Filter));
            throw;
        }
        __atomic_store_n(&pages_[number], fresh, __ATOMIC_RELEASE);
        return fresh;
    }

    void forget_filter() noexcept {
        for (Filter* filter : filters_) unmap_pages(filter, sizeof(Filter));
        filters_.reset();
    }

    static constexpr std::size_t kFirstEntries = 4096;

    Filter** pages_ = nullptr;
    PageVector<Filter*> filters_;
    PageVector<Entry> entries_;
    std::size_t used_ = 0;
};

}  // namespace hiwater
