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
        each_region([](std::size_t, std::uint32_t* words) { unmap_pages(words, kRegionMapBytes); });
        unmap_pages(regions_, kDirectoryBytes);
    }

    // Reserves the directory: 24 MiB of address space, touched where used.
    bool init() noexcept {
        if (regions_ != nullptr) return true;
        regions_ = static_cast<std::uint32_t**>(map_pages(kDirectoryBytes));
        used_ = reinterpret_cast<std::uint32_t*>(regions_ + kRegions);
        return regions_ != nullptr;
    }

    // Forgets every block and gives the pages back. The address space stays mapped: another thread may be about to look.
    void empty() noexcept {
        each_region([](std::size_t, std::uint32_t* words) { ::madvise(words, kRegionMapBytes, MADV_DONTNEED); });
    }

    // The word of an address, or null where nothing was ever put near it. A word stays where it is for the life of the process.
    std::uint32_t* find(std::uintptr_t address) const noexcept {
        const std::uintptr_t region = address >> kRegionShift;
        if (region >= kRegions) [[unlikely]] return nullptr;
        std::uint32_t* words = __atomic_load_n(&regions_[region], __ATOMIC_ACQUIRE);
        if (words == nullptr) [[unlikely]] return nullptr;
        return words + ((address >> kGranuleShift) & (kGranules - 1));
    }

    // The same, made where there is none. Throws bad_alloc. Safe without any lock.
    std::uint32_t* word_of(std::uintptr_t address) {
        std::uint32_t* word = find(address);
        return word != nullptr ? word : make(address);
    }

    // Puts a block in. Where one is already there it was freed behind our back: it is taken out and returned.
    Block insert(std::uint32_t* word, std::uintptr_t address, std::uint64_t bytes, std::uint32_t ledger) noexcept {
        claim(word);
        Block stale;
        if (*word != 0) [[unlikely]] stale = evict(word, address);
        if (bytes <= kSmall) {
            *word = (static_cast<std::uint32_t>(bytes) << kCodeShift) | ledger;
        } else if (bytes <= kSizeMask) [[likely]] {
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
    Block remove(std::uint32_t* word) noexcept {
        if (*word == 0 || (*word & kContinued) != 0) [[unlikely]] return {};
        const Block block = read(word);
        clear(word);
        return block;
    }
    Block remove(std::uintptr_t address) noexcept {
        std::uint32_t* word = find(address);
        return word == nullptr ? Block{} : remove(word);
    }

    Block look(std::uintptr_t address) const noexcept {
        const std::uint32_t* word = find(address);
        if (word == nullptr || *word == 0 || (*word & kContinued) != 0) return {};
        return read(word);
    }

    // Calls visit(address, block) for every block. O(mapped table): tests and self-checks only.
    template <typename Visit>
    void each(Visit visit) const {
        each_region([&](std::size_t number, const std::uint32_t* words) {
            for (std::size_t granule = 0; granule < kGranules; ++granule) {
                if (words[granule] == 0 || (words[granule] & kContinued) != 0) continue;
                visit((static_cast<std::uintptr_t>(number) << kRegionShift) + (granule << kGranuleShift), read(words + granule));
            }
        });
    }

    // Resident bytes of the table itself, asked of the kernel.
    std::uint64_t resident_bytes() const noexcept {
        std::uint64_t pages = 0;
        each_region([&pages](std::size_t, std::uint32_t* words) {
            unsigned char in_core[kRegionMapBytes / kPage];
            if (::mincore(words, kRegionMapBytes, in_core) != 0) return;
            for (const unsigned char c : in_core) pages += c & 1;
        });
        return pages * kPage;
    }

private:
    static constexpr unsigned kGranuleShift = 4;
    static constexpr unsigned kRegionShift = 26;  // 64 MiB of address space: 16 MiB of words, mapped lazily
    static constexpr unsigned kAddressBits = 47;
    static constexpr std::size_t kRegions = std::size_t{1} << (kAddressBits - kRegionShift);
    static constexpr std::size_t kGranules = std::size_t{1} << (kRegionShift - kGranuleShift);
    static constexpr std::size_t kDirectoryBytes = kRegions * (sizeof(std::uint32_t*) + sizeof(std::uint32_t));
    // A block in a region's last granule keeps its size words in the page behind it.
    static constexpr std::size_t kRegionMapBytes = kGranules * sizeof(std::uint32_t) + kPage;
    static constexpr std::uint32_t kContinued = 1u << 31;
    static constexpr std::uint32_t kSizeMask = kContinued - 1;
    static constexpr unsigned kCodeShift = 26;
    static constexpr std::uint32_t kLedgerMask = kMaxLedger;
    static constexpr std::uint64_t kSmall = 16;
    static constexpr std::uint32_t kOneWord = 17, kTwoWords = 18;

    [[gnu::noinline]] std::uint32_t* make(std::uintptr_t address) {
        const std::uintptr_t region = address >> kRegionShift;
        if (region >= kRegions) throw std::bad_alloc();
        void* words = map_pages(kRegionMapBytes);
        if (words == nullptr) throw std::bad_alloc();
        std::uint32_t* none = nullptr;
        if (__atomic_compare_exchange_n(&regions_[region], &none, static_cast<std::uint32_t*>(words), false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
            note_region(region);
        } else {
            unmap_pages(words, kRegionMapBytes);  // another thread was first
        }
        return find(address);
    }

    void note_region(std::size_t region) noexcept {
        const std::uint32_t at = used_count_.fetch_add(1, std::memory_order_relaxed);
        __atomic_store_n(&used_[at], static_cast<std::uint32_t>(region) + 1, __ATOMIC_RELEASE);
    }

    template <typename Visit>  // visit(number of the region, its words)
    void each_region(Visit visit) const {
        const std::uint32_t count = used_count_.load(std::memory_order_acquire);
        for (std::uint32_t i = 0; i < count; ++i)
            if (const std::uint32_t region = __atomic_load_n(&used_[i], __ATOMIC_ACQUIRE)) visit(region - 1, regions_[region - 1]);
    }

    // A page of the table that is first read and then written faults twice: the kernel lends its zero page for the reading, and
    // takes it back at the writing with an interrupt to every processor. A first touch that counts as a write saves that.
    static void claim(std::uint32_t* word) noexcept {
#if defined(__x86_64__)
        asm volatile("addl $0, %0" : "+m"(*word) : : "cc");
#else
        __atomic_fetch_add(word, 0, __ATOMIC_RELAXED);
#endif
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
    std::uint32_t* used_ = nullptr;  // numbers of the regions in use, plus one; behind the directory
    std::atomic<std::uint32_t> used_count_{0};
};

}  // namespace hiwater
