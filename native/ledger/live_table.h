// Which block lives at an address: a side table with one 32-bit word for each 16-byte granule of address space, mapped only where
// blocks are. No hashing, no rehash; a lookup is two loads.
//
//   word = 0                  no block starts here
//   top bit 0                 a block starts here: 5 bits of size code, 26 bits of ledger
//   top bit 1                 31 bits of the size of the block that started one or two granules before
//
// A block of up to 16 bytes has its size in the code (0..16). Larger ones own at least two granules (three from 2 GiB), whose
// words hold the size: allocators hand out addresses that are multiples of 16.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../base/pages.h"

namespace hiwater {

struct Block {
    std::uint32_t ledger = 0;  // 0: no block
    std::uint64_t bytes = 0;
};

class LiveTable {
public:
    static constexpr std::uint32_t kMaxLedger = (1u << 26) - 1;

    LiveTable() = default;
    LiveTable(const LiveTable&) = delete;
    LiveTable& operator=(const LiveTable&) = delete;
    ~LiveTable() {
        if (regions_ == nullptr) return;
        for (std::size_t i = 0; i < used_.size(); ++i) unmap_pages(regions_[used_[i]], kRegionMapBytes);
        unmap_pages(regions_, kRegions * sizeof(std::uint32_t*));
    }

    // Reserves the directory: 16 MiB of address space, touched where used.
    bool init() noexcept {
        if (regions_ == nullptr) regions_ = static_cast<std::uint32_t**>(map_pages(kRegions * sizeof(std::uint32_t*)));
        return regions_ != nullptr;
    }

    // Forgets every block and gives the pages back. The address space stays mapped: another thread may be about to look.
    void empty() noexcept {
        for (std::size_t i = 0; i < used_.size(); ++i) ::madvise(regions_[used_[i]], kRegionMapBytes, MADV_DONTNEED);
    }

    // Safe without the lock for the thread that owns the block: nobody else may change its words.
    bool holds(std::uintptr_t address) const noexcept {
        const std::uint32_t* word = find(address);
        return word != nullptr && *word != 0;
    }

    void prefetch(std::uintptr_t address) const noexcept {
        if (const std::uint32_t* word = find(address)) __builtin_prefetch(word, 1);
    }

    // Puts a block in. Where one is already there it was freed behind our back: it is taken out and returned.
    // Throws bad_alloc when the table cannot grow.
    Block insert(std::uintptr_t address, std::uint64_t bytes, std::uint32_t ledger) {
        std::uint32_t* word = find(address);
        if (word == nullptr) [[unlikely]] word = make(address);
        Block stale;
        if (*word != 0) [[unlikely]] stale = evict(word, address);
        if (bytes <= kSmall) {
            *word = (static_cast<std::uint32_t>(bytes) << kCodeShift) | ledger;
            return stale;
        }
        if (bytes <= kSizeMask) [[likely]] {
            word[0] = (kOneWord << kCodeShift) | ledger;
            word[1] = kContinued | static_cast<std::uint32_t>(bytes);
        } else {
            word[0] = (kTwoWords << kCodeShift) | ledger;
            word[1] = kContinued | static_cast<std::uint32_t>(bytes & kSizeMask);
            word[2] = kContinued | static_cast<std::uint32_t>(bytes >> 31);
        }
        return stale;
    }

    // Takes a block out; ledger 0 when none starts there.
    Block remove(std::uintptr_t address) noexcept {
        std::uint32_t* word = find(address);
        if (word == nullptr || *word == 0 || (*word & kContinued) != 0) return {};
        const Block block = read(word);
        clear(word);
        return block;
    }

    Block look(std::uintptr_t address) const noexcept {
        const std::uint32_t* word = find(address);
        if (word == nullptr || *word == 0 || (*word & kContinued) != 0) return {};
        return read(word);
    }

    // Calls visit(address, block) for every block. O(mapped table): tests and self-checks only.
    template <typename Visit>
    void each(Visit visit) const {
        for (std::size_t i = 0; i < used_.size(); ++i) {
            const std::uint32_t* region = regions_[used_[i]];
            for (std::size_t granule = 0; granule < kGranules; ++granule) {
                if (region[granule] == 0 || (region[granule] & kContinued) != 0) continue;
                visit((static_cast<std::uintptr_t>(used_[i]) << kRegionShift) + (granule << kGranuleShift), read(region + granule));
            }
        }
    }

    // Resident bytes of the table itself, asked of the kernel.
    std::uint64_t resident_bytes() const noexcept {
        std::uint64_t pages = 0;
        static unsigned char in_core[kRegionMapBytes / kPage];
        for (std::size_t i = 0; i < used_.size(); ++i) {
            if (::mincore(regions_[used_[i]], kRegionMapBytes, in_core) != 0) continue;
            for (unsigned char c : in_core) pages += c & 1;
        }
        return pages * kPage;
    }

private:
    static constexpr unsigned kGranuleShift = 4;
    static constexpr unsigned kRegionShift = 26;  // 64 MiB of address space: 16 MiB of words, mapped lazily
    static constexpr unsigned kAddressBits = 47;
    static constexpr std::size_t kRegions = std::size_t{1} << (kAddressBits - kRegionShift);
    static constexpr std::size_t kGranules = std::size_t{1} << (kRegionShift - kGranuleShift);
    // A block in a region's last granule keeps its size words in the page behind it.
    static constexpr std::size_t kRegionMapBytes = kGranules * sizeof(std::uint32_t) + kPage;
    static constexpr std::uint32_t kContinued = 1u << 31;
    static constexpr std::uint32_t kSizeMask = kContinued - 1;
    static constexpr unsigned kCodeShift = 26;
    static constexpr std::uint32_t kLedgerMask = kMaxLedger;
    static constexpr std::uint64_t kSmall = 16;
    static constexpr std::uint32_t kOneWord = 17, kTwoWords = 18;

    std::uint32_t* find(std::uintptr_t address) const noexcept {
        const std::uintptr_t region = address >> kRegionShift;
        if (region >= kRegions) [[unlikely]] return nullptr;
        std::uint32_t* words = __atomic_load_n(&regions_[region], __ATOMIC_ACQUIRE);
        if (words == nullptr) [[unlikely]] return nullptr;
        return words + ((address >> kGranuleShift) & (kGranules - 1));
    }

    [[gnu::noinline]] std::uint32_t* make(std::uintptr_t address) {
        const std::uintptr_t region = address >> kRegionShift;
        if (region >= kRegions) throw std::bad_alloc();
        used_.push_back(static_cast<std::uint32_t>(region));
        void* words = map_pages(kRegionMapBytes);
        if (words == nullptr) {
            used_.resize(used_.size() - 1);
            throw std::bad_alloc();
        }
        __atomic_store_n(&regions_[region], static_cast<std::uint32_t*>(words), __ATOMIC_RELEASE);
        return find(address);
    }

    static Block read(const std::uint32_t* word) noexcept {
        const std::uint32_t code = *word >> kCodeShift;
        const std::uint32_t ledger = *word & kLedgerMask;
        if (code <= kSmall) return {ledger, code};
        std::uint64_t bytes = word[1] & kSizeMask;
        if (code == kTwoWords) bytes |= static_cast<std::uint64_t>(word[2] & kSizeMask) << 31;
        return {ledger, bytes};
    }

    static void clear(std::uint32_t* word) noexcept {
        const std::uint32_t code = *word >> kCodeShift;
        word[0] = 0;
        if (code >= kOneWord) word[1] = 0;
        if (code == kTwoWords) word[2] = 0;
    }

    [[gnu::noinline]] Block evict(std::uint32_t* word, std::uintptr_t address) noexcept {
        for (int back = 0; back < 3 && (*word & kContinued) != 0; ++back) {
            if ((address & ((std::uintptr_t{1} << kRegionShift) - 1)) < (std::uintptr_t{1} << kGranuleShift)) break;
            --word;
            address -= std::uintptr_t{1} << kGranuleShift;
        }
        if (*word == 0 || (*word & kContinued) != 0) {
            *word = 0;
            return {};
        }
        const Block block = read(word);
        clear(word);
        return block;
    }

    std::uint32_t** regions_ = nullptr;
    PageVector<std::uint32_t> used_;
};

}  // namespace hiwater
