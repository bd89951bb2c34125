// Which block lives at an address: two side tables over the address space, mapped only where blocks are. No hashing, no rehash.
//
//   small    one 32-bit word for each 16-byte granule, for blocks below 512 bytes
//   large    one 64-bit word for each 512-byte granule, for the others: no two of them can start in one granule. A table as fine as
//            the small one would cost a line of cache, and a quarter of their own size, for blocks that are far apart.
//
//   small word = 0            no block starts here
//     top bit 0               a block starts here: 5 bits of size code, 26 bits of ledger
//     top bit 1               the size of the block that started one granule before (allocators hand out multiples of 16, so a block
//                             of more than 16 bytes owns two granules; up to 16 the size is the code)
//   large word = 0            no block starts here
//     top bit 0               31 bits of size, 1 bit "more size in the next word", 5 bits of offset in the granule, 26 bits of ledger
//     top bit 1               the size of the block that started one granule before, from bit 31 up
//
// Always: a block is in one of the tables, the one its size asks for.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "../base/pages.h"

namespace hiwater {

struct Block {
    std::uint32_t ledger = 0;  // 0: no block
    std::uint64_t bytes = 0;
    std::uint32_t session = 0;  // recording that the ledger belongs to, where the block is kept over a call
};

class LiveTable {
public:
    static constexpr std::uint32_t kMaxLedger = (1u << 26) - 1;
    static constexpr std::uint64_t kLargeBytes = 512;

    // The tables of 64 MiB of address space. It stays where it is for the life of the process.
    struct Region {
        static constexpr unsigned kShift = 26;
        static constexpr std::size_t kGranules = std::size_t{1} << (kShift - 4);
        static constexpr std::size_t kLargeGranules = std::size_t{1} << (kShift - 9);
        static constexpr std::size_t kStretches = std::size_t{1} << (kShift - 14);

        std::uint64_t large[kLargeGranules];
        std::uint64_t behind_large[kPage / sizeof(std::uint64_t)];  // the last granule's size word
        // For each page of `small`, which is 16 KiB of address space: kUsed where it was ever used, and kOneLarge for each word of
        // `large` in its stretch. An event of one table learns here whether it has to look at the other, which it mostly has not.
        std::uint8_t stretch[kStretches];
        static constexpr std::uint8_t kUsed = 1, kOneLarge = 2;
        std::uint32_t small[kGranules];
        std::uint32_t behind_small[kPage / sizeof(std::uint32_t)];
    };

    LiveTable() = default;
    LiveTable(const LiveTable&) = delete;
    LiveTable& operator=(const LiveTable&) = delete;
    ~LiveTable() {
        each_region([](std::size_t, Region* region) { unmap_pages(region, sizeof(Region)); });
        unmap_pages(regions_, kDirectoryBytes);
    }

    // Reserves the directory: 24 MiB of address space, touched where used.
    bool init() noexcept {
        if (regions_ != nullptr) return true;
        auto* pages = static_cast<char*>(map_pages(kDirectoryBytes));
        used_ = reinterpret_cast<std::uint32_t*>(pages + kRegions * sizeof(Region*));
        regions_ = reinterpret_cast<Region**>(pages);
        return regions_ != nullptr;
    }

    // Forgets every block and gives the pages back. The address space stays mapped: another thread may be about to look.
    void empty() noexcept {
        each_region([](std::size_t, Region* region) { ::madvise(region, sizeof(Region), MADV_DONTNEED); });
    }

    // The address that a block is kept under. jemalloc and its like have blocks of 8 bytes, two of them in a granule: the second one's is
    // where no program has memory.
    static constexpr std::uintptr_t key_of(std::uintptr_t address) noexcept { return address ^ (address & 8) << 42; }

    // The region of an address, or null where nothing was ever put near it.
    Region* find(std::uintptr_t address) const noexcept {
        const std::uintptr_t number = address >> Region::kShift;
        return number < kRegions ? __atomic_load_n(&regions_[number], __ATOMIC_ACQUIRE) : nullptr;
    }

    // The same, made where there is none. Throws bad_alloc. Safe without any lock.
    Region* region_of(std::uintptr_t address) {
        Region* region = find(address);
        return region != nullptr ? region : make(address);
    }

    // Which table has the block that starts at the address, if one does. Safe without the lock for the thread that owns the block.
    enum class Place { nowhere, small, large };
    [[gnu::always_inline]] static Place place_of(Region* region, std::uintptr_t address) noexcept {
        const std::uint8_t stretch = __atomic_load_n(&stretch_at(region, address), __ATOMIC_RELAXED);
        if (stretch > Region::kUsed &&
            is_large_at(__atomic_load_n(&region->large[large_granule(address)], __ATOMIC_RELAXED), address))
            return Place::large;
        // A look into a page that was never used would have the kernel put one there.
        return (stretch & Region::kUsed) != 0 && starts(region->small[granule(address)]) ? Place::small : Place::nowhere;
    }
    // Takes out what place_of() found; ledger 0 when the tables were emptied since.
    [[gnu::always_inline]] static Block remove(Region* region, std::uintptr_t address, Place place) noexcept {
        if (place == Place::small) return take_small(region->small + granule(address));
        return place == Place::large ? take_large(region, region->large + large_granule(address)) : Block{};
    }

    // Puts a block in. What is found where its words go was freed behind our back: each such block is taken out and given to
    // stale(block). There can be three: a small one, the large one around it, and one in the next granule.
    template <typename Stale>
    [[gnu::always_inline]] static void insert(Region* region, std::uintptr_t address, std::uint64_t bytes, std::uint32_t ledger,
                                              Stale stale) noexcept {
        if (bytes >= kLargeBytes) return insert_large(region, address, bytes, ledger, stale);
        std::uint32_t* small = region->small + granule(address);
        if (stretch_at(region, address) != Region::kUsed) [[unlikely]]
            look_around_small(region, small, address, stale);
        if (*small != 0) [[unlikely]]
            hand_over(evict_small(small, address), stale);
        if (bytes > kSmallest && small[1] != 0) [[unlikely]]
            hand_over(take_small(small + 1), stale);
        write_small(small, bytes, ledger);
    }

    // The same for a small block in a stretch that has no large ones, where insert() finds nothing in its way; else nothing is done, and
    // this says false.
    [[gnu::always_inline]] static bool insert_plainly(Region* region, std::uintptr_t address, std::uint64_t bytes,
                                                      std::uint32_t ledger) noexcept {
        std::uint32_t* small = region->small + granule(address);
        if (!is_plain(region, address) || (bytes <= kSmallest ? *small : both_words(small)) != 0) return false;
        write_small(small, bytes, ledger);
        return true;
    }
    // And for a large one of a size that needs one word.
    [[gnu::always_inline]] static bool insert_large_plainly(Region* region, std::uintptr_t address, std::uint64_t bytes,
                                                            std::uint32_t ledger) noexcept {
        std::uint64_t* large = region->large + large_granule(address);
        std::uint8_t& stretch = stretch_at(region, address);
        if (*large != 0 || bytes > kSizeMask || ((stretch & Region::kUsed) != 0 && region->small[granule(address)] != 0))
            return false;
        change_stretch(stretch, Region::kOneLarge);
        *large = large_word(address, bytes, ledger);
        return true;
    }

    // Of threads that share the lock. Each touches the words of its own blocks alone; the count of a stretch is everybody's. False, and
    // nothing is done, where something is in the way, or the stretch is new.
    static bool insert_apart(Region* region, std::uintptr_t address, std::uint64_t bytes, std::uint32_t ledger) noexcept {
        const bool is_used = (__atomic_load_n(&stretch_at(region, address), __ATOMIC_RELAXED) & Region::kUsed) != 0;
        std::uint32_t* const small = region->small + granule(address);
        std::uint64_t* const large = region->large + large_granule(address);
        const std::uint64_t around = __atomic_load_n(large, __ATOMIC_RELAXED);
        if (is_used && *small != 0) return false;
        if (bytes >= kLargeBytes) {
            if (around != 0 || bytes > kSizeMask) return false;
            put_large<true>(region, large, large_word(address, bytes, ledger));
            return true;
        }
        if (!is_used || (bytes > kSmallest && small[1] != 0)) return false;
        if (around != 0 && offset_of(around) <= offset(address)) return false;
        write_small(small, bytes, ledger);
        return true;
    }
    [[gnu::always_inline]] static void remove_apart(Region* region, std::uintptr_t address, Place place) noexcept {
        if (place == Place::small) take_small(region->small + granule(address));
        if (place == Place::large) take_large<true>(region, region->large + large_granule(address));
    }
    [[gnu::always_inline]] static Block look(const Region* region, std::uintptr_t address, Place place) noexcept {
        if (place == Place::large) return read_large(region->large + large_granule(address));
        return place == Place::small ? read_small(region->small + granule(address)) : Block{};
    }
    static bool starts_plainly(const Region* region, std::uintptr_t address) noexcept {
        return starts(region->small[granule(address)]);
    }
    [[gnu::always_inline]] static Block remove_plainly(Region* region, std::uintptr_t address) noexcept {
        return take_small(region->small + granule(address));
    }
    static bool is_plain(Region* region, std::uintptr_t address) noexcept {
        return __atomic_load_n(&stretch_at(region, address), __ATOMIC_RELAXED) == Region::kUsed;
    }

    // Takes a block out; ledger 0 when none starts there.
    Block remove(std::uintptr_t address) noexcept {
        Region* region = find(address);
        return region == nullptr ? Block{} : remove(region, address, place_of(region, address));
    }

    Block look(std::uintptr_t address) const noexcept {
        Region* region = find(address);
        return region == nullptr ? Block{} : look(region, address, place_of(region, address));
    }

    // Calls visit(address, block) for every block. O(mapped tables): tests and self-checks only.
    template <typename Visit>
    void each(Visit visit) const {
        each_region([&](std::size_t number, const Region* region) {
            const std::uintptr_t base = static_cast<std::uintptr_t>(number) << Region::kShift;
            for (std::size_t i = 0; i < Region::kLargeGranules; ++i) {
                const std::uint64_t word = region->large[i];
                if (word != 0 && (word & kLargeContinued) == 0)
                    visit(base + (i << 9) + (offset_of(word) << 4), read_large(region->large + i));
            }
            for (std::size_t i = 0; i < Region::kGranules; ++i)
                if (starts(region->small[i])) visit(base + (i << 4), read_small(region->small + i));
        });
    }

    // O(mapped tables). Every stretch counts the words of `large` that lie in it, and knows of the small blocks it has.
    bool is_consistent() const {
        bool sound = true;
        each_region([&](std::size_t, const Region* region) {
            for (std::size_t s = 0; s < Region::kStretches; ++s) {
                constexpr std::size_t large = Region::kLargeGranules / Region::kStretches,
                                      small = Region::kGranules / Region::kStretches;
                std::size_t words = 0;
                for (std::size_t i = s * large; i < (s + 1) * large; ++i) words += region->large[i] != 0;
                if (s + 1 == Region::kStretches) words += region->behind_large[0] != 0;
                bool used = false;
                for (std::size_t i = s * small; i < (s + 1) * small && !used; ++i) used = starts(region->small[i]);
                sound = sound && region->stretch[s] / Region::kOneLarge == words &&
                        (!used || (region->stretch[s] & Region::kUsed) != 0);
            }
        });
        return sound;
    }

    // Resident bytes of the tables themselves, asked of the kernel.
    std::uint64_t resident_bytes() const noexcept {
        std::uint64_t pages = 0;
        each_region([&pages](std::size_t, Region* region) {
            unsigned char in_core[sizeof(Region) / kPage];
            if (::mincore(region, sizeof(Region), in_core) != 0) return;
            for (const unsigned char c : in_core) pages += c & 1;
        });
        return pages * kPage;
    }

private:
    static_assert(sizeof(Region) % kPage == 0);
    static constexpr unsigned kAddressBits = 47;
    static constexpr std::size_t kRegions = std::size_t{1} << (kAddressBits - Region::kShift);
    static constexpr std::size_t kDirectoryBytes = kRegions * (sizeof(Region*) + sizeof(std::uint32_t));

    static constexpr std::uint32_t kContinued = 1u << 31;
    static constexpr std::uint32_t kLedgerMask = kMaxLedger;
    static constexpr unsigned kCodeShift = 26;
    static constexpr std::size_t kGranulesOfStretch = Region::kGranules / Region::kStretches;
    static constexpr std::size_t kTogether = 8;  // stretches that get the pages of their small words in one call
    static constexpr std::uint64_t kSmallest = 16;
    static constexpr std::uint32_t kSizeBehind = 17;

    static constexpr std::uint64_t kLargeContinued = std::uint64_t{1} << 63;
    static constexpr std::uint64_t kMoreSize = std::uint64_t{1} << 31;
    static constexpr unsigned kOffsetShift = 26, kSizeShift = 32;
    static constexpr std::uint64_t kSizeMask = (std::uint64_t{1} << 31) - 1;

    static std::size_t granule(std::uintptr_t address) noexcept { return (address >> 4) % Region::kGranules; }
    static std::size_t large_granule(std::uintptr_t address) noexcept { return (address >> 9) % Region::kLargeGranules; }
    static std::uint64_t offset(std::uintptr_t address) noexcept { return address >> 4 & 31; }
    static std::uint64_t offset_of(std::uint64_t word) noexcept { return word >> kOffsetShift & 31; }
    static bool starts(std::uint32_t word) noexcept { return static_cast<std::int32_t>(word) > 0; }
    static bool is_large_at(std::uint64_t word, std::uintptr_t address) noexcept {
        return static_cast<std::int64_t>(word) > 0 && offset_of(word) == offset(address);
    }

    // A page of the table that is first read and then written faults twice: the kernel lends its zero page for the reading, and
    // takes it back at the writing with an interrupt to every processor. A first touch that counts as a write saves that.
    // Heaps grow from one end to the other, so the pages around are wanted soon: a call for some costs little more than a fault for one.
    static void claim(Region* region, std::uint32_t* word) noexcept {
        static_assert(kGranulesOfStretch * sizeof *word == kPage && offsetof(Region, small) % kPage == 0);
        const std::size_t first = (word - region->small) / kGranulesOfStretch / kTogether * kTogether;
        if (!any_used(region, first)) touch_pages(region->small + first * kGranulesOfStretch, kTogether * kPage);
#if defined(__x86_64__)
        asm volatile("addl $0, %0" : "+m"(*word) : : "cc");
#else
        __atomic_fetch_add(word, 0, __ATOMIC_RELAXED);
#endif
    }

    // Whether any of the stretches that get their pages together has had them.
    static bool any_used(const Region* region, std::size_t first) noexcept {
        std::uint64_t together = 0, used = 0;
        static_assert(sizeof together == kTogether && offsetof(Region, stretch) % kTogether == 0);
        __builtin_memcpy(&together, region->stretch + first, sizeof together);
        __builtin_memset(&used, Region::kUsed, sizeof used);
        return (together & used) != 0;
    }

    static Block read_small(const std::uint32_t* word) noexcept {
        const std::uint32_t code = *word >> kCodeShift;
        return {*word & kLedgerMask, code <= kSmallest ? code : word[1] & ~kContinued};
    }
    static void write_small(std::uint32_t* word, std::uint64_t bytes, std::uint32_t ledger) noexcept {
        if (bytes <= kSmallest) {
            *word = (static_cast<std::uint32_t>(bytes) << kCodeShift) | ledger;
        } else {
            set_both_words(word, (kContinued | bytes) << 32 | (kSizeBehind << kCodeShift) | ledger);
        }
    }
    static Block take_small(std::uint32_t* word) noexcept {
        const Block block = read_small(word);
        if (*word >> kCodeShift <= kSmallest) {
            *word = 0;
        } else {
            set_both_words(word, 0);
        }
        return block;
    }
    // A block's word and the size behind it, in one load or store.
    static_assert(std::endian::native == std::endian::little);
    static std::uint64_t both_words(const std::uint32_t* word) noexcept {
        std::uint64_t both = 0;
        __builtin_memcpy(&both, word, sizeof both);
        return both;
    }
    static void set_both_words(std::uint32_t* word, std::uint64_t both) noexcept { __builtin_memcpy(word, &both, sizeof both); }

    static Block read_large(const std::uint64_t* word) noexcept {
        std::uint64_t bytes = *word >> kSizeShift & kSizeMask;
        if ((*word & kMoreSize) != 0) [[unlikely]]
            bytes |= (word[1] & ~kLargeContinued) << 31;
        return {static_cast<std::uint32_t>(*word) & kLedgerMask, bytes};
    }
    static std::uint64_t large_word(std::uintptr_t address, std::uint64_t bytes, std::uint32_t ledger) noexcept {
        return (bytes & kSizeMask) << kSizeShift | offset(address) << kOffsetShift | ledger;
    }
    template <bool kApart = false>
    static Block take_large(Region* region, std::uint64_t* word) noexcept {
        const Block block = read_large(word);
        if ((*word & kMoreSize) != 0) [[unlikely]]
            put_large<kApart>(region, word + 1, 0);
        put_large<kApart>(region, word, 0);
        return block;
    }
    // A word of `large` becomes one, or ceases to be one; the word behind the last stretch counts with that.
    template <bool kApart = false>
    static void put_large(Region* region, std::uint64_t* word, std::uint64_t value) noexcept {
        const auto number = static_cast<std::size_t>(word - region->large) >> 5;
        std::uint8_t& stretch = region->stretch[number < Region::kStretches ? number : Region::kStretches - 1];
        const auto by = static_cast<std::uint8_t>(Region::kOneLarge * ((value != 0) - (*word != 0)));
        if constexpr (kApart) {
            __atomic_fetch_add(&stretch, by, __ATOMIC_RELAXED);
        } else {
            change_stretch(stretch, by);
        }
        __atomic_store_n(word, value, __ATOMIC_RELAXED);
    }
    static std::uint8_t& stretch_at(Region* region, std::uintptr_t address) noexcept {
        return region->stretch[(address >> 14) % Region::kStretches];
    }
    // Under the lock; it is read without.
    static void change_stretch(std::uint8_t& stretch, std::uint8_t by) noexcept {
        __atomic_store_n(&stretch, static_cast<std::uint8_t>(stretch + by), __ATOMIC_RELAXED);
    }

    template <typename Stale>
    static void hand_over(const Block& block, Stale& stale) {
        if (block.ledger != 0) stale(block);
    }

    // Before a small block goes into a stretch that is new, or has large blocks.
    template <typename Stale>
    static void look_around_small(Region* region, std::uint32_t* small, std::uintptr_t address, Stale& stale) noexcept {
        std::uint8_t& stretch = stretch_at(region, address);
        if ((stretch & Region::kUsed) == 0) {
            claim(region, small);
            change_stretch(stretch, Region::kUsed);
        }
        std::uint64_t* large = region->large + large_granule(address);
        if (*large != 0 && offset_of(*large) <= offset(address)) [[unlikely]]
            hand_over(evict_large(region, large, address), stale);
    }

    template <typename Stale>
    static void insert_large(Region* region, std::uintptr_t address, std::uint64_t bytes, std::uint32_t ledger,
                             Stale& stale) noexcept {
        std::uint64_t* large = region->large + large_granule(address);
        std::uint32_t* small = region->small + granule(address);
        if (*large != 0) [[unlikely]]
            hand_over(evict_large(region, large, address), stale);
        if ((stretch_at(region, address) & Region::kUsed) != 0 && *small != 0) [[unlikely]]
            hand_over(evict_small(small, address), stale);
        const std::uint64_t more = bytes > kSizeMask ? kMoreSize : 0;
        if (more != 0 && large[1] != 0) [[unlikely]]
            hand_over(take_large(region, large + 1), stale);
        put_large(region, large, large_word(address, bytes, ledger) | more);
        if (more != 0) [[unlikely]]
            put_large(region, large + 1, kLargeContinued | bytes >> 31);
    }

    // What lies where a new block starts: a block that starts there too, or the size word of one that started a granule before.
    [[gnu::noinline]] static Block evict_small(std::uint32_t* word, std::uintptr_t address) noexcept {
        if ((*word & kContinued) != 0) {
            if (granule(address) == 0) return *word = 0, Block{};
            --word;
        }
        return take_small(word);
    }
    [[gnu::noinline]] static Block evict_large(Region* region, std::uint64_t* word, std::uintptr_t address) noexcept {
        if ((*word & kLargeContinued) != 0) {
            if (large_granule(address) == 0) return put_large(region, word, 0), Block{};
            --word;
        }
        return take_large(region, word);
    }

    [[gnu::noinline]] Region* make(std::uintptr_t address) {
        const std::uintptr_t number = address >> Region::kShift;
        if (number >= kRegions) throw std::bad_alloc();
        auto* fresh = static_cast<Region*>(map_pages(sizeof(Region)));
        if (fresh == nullptr) throw std::bad_alloc();
        Region* none = nullptr;
        if (__atomic_compare_exchange_n(&regions_[number], &none, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            const std::uint32_t at = used_count_.fetch_add(1, std::memory_order_relaxed);
            __atomic_store_n(&used_[at], static_cast<std::uint32_t>(number) + 1, __ATOMIC_RELEASE);
        } else {
            unmap_pages(fresh, sizeof(Region));  // another thread was first
        }
        return find(address);
    }

    template <typename Visit>  // visit(number of the region, region)
    void each_region(Visit visit) const {
        const std::uint32_t count = used_count_.load(std::memory_order_acquire);
        for (std::uint32_t i = 0; i < count; ++i)
            if (const std::uint32_t number = __atomic_load_n(&used_[i], __ATOMIC_ACQUIRE)) visit(number - 1, regions_[number - 1]);
    }

    Region** regions_ = nullptr;
    std::uint32_t* used_ = nullptr;  // numbers of the regions in use, plus one; behind the directory
    std::atomic<std::uint32_t> used_count_{0};
};

}  // namespace hiwater
