// Which block lives at an address: two side tables over the address space, mapped only where blocks are. No hashing, no
// rehash.
//
//   small    one 32-bit word for each 16-byte granule, for blocks below 512 bytes
//   large    one 64-bit word for each 512-byte granule, for the others: no two of them can start in one granule.
//            A table as fine as the small one would cost a line of cache, and a quarter of their own size, for blocks
//            that are far apart.
//
//   small word = 0            no block starts here
//     top bit 0               a block starts here: 5 bits of size code, 26 bits of account
//     top bit 1               the size of the block that started one granule before (allocators hand out multiples
//                             of 16: a block of more than 16 bytes owns two granules; up to 16 the size is the code)
//   large word = 0            no block starts here
//     top bit 0               31 bits of size, 1 bit "more size in the next word", 5 bits of offset in the granule,
//                             26 bits of account
//     top bit 1               the size of the block that started one granule before, from bit 31 up
//
// Always: a block is in one of the tables, the one for its size. The file is longer than 400 lines because every
// function relies on that, and on the words above.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/compare_word.h"
#include "heap/live_regions.h"

namespace hiwater {

struct Block {
    std::uint32_t account = 0;  // 0: no block
    std::uint64_t bytes = 0;
    std::uint32_t session = 0;  // recording that the account belongs to, where the block is kept over a call
};

class LiveTable : public LiveRegions {
public:
    static constexpr std::uint32_t kMaxAccount = (1u << 26) - 1;
    static constexpr std::uint64_t kLargeBytes = 512;

    using Region = hiwater::Region;

    // The address that a block is kept under. jemalloc and its like have blocks of 8 bytes, two of them in a granule:
    // the second one's is where no program has memory.
    static constexpr std::uintptr_t key_of(std::uintptr_t address) noexcept { return address ^ (address & 8) << 42; }

    // The region of an address with room for a block of that size, made where there is none. Throws bad_alloc. Safe
    // without any lock.
    Region* room_for(std::uintptr_t address, std::uint64_t bytes) { return with_words(address, bytes < kLargeBytes); }
    static bool has_room(const Region* region, std::uintptr_t address, std::uint64_t bytes) noexcept {
        return bytes < kLargeBytes ? region->has_small(address) : region->has_large(address);
    }

    // Which table has the block that starts at the address, if one does. Safe without the lock for the thread that owns
    // the block.
    enum class Place { nowhere, small, large };
    [[gnu::always_inline]] static Place place_of(Region* region, std::uintptr_t address) noexcept {
        const std::uint8_t stretch = __atomic_load_n(&region->stretch_at(address), __ATOMIC_ACQUIRE);
        if (stretch > Region::kUsed &&
            is_large_at(__atomic_load_n(region->large_at(address), __ATOMIC_RELAXED), address))
            return Place::large;
        // Reading a page of the table that was never used would make the kernel map one.
        return (stretch & Region::kUsed) != 0 && starts(*region->small_at(address)) ? Place::small : Place::nowhere;
    }
    // Takes out what place_of() found; account 0 when the tables were emptied since.
    [[gnu::always_inline]] static Block remove(Region* region, std::uintptr_t address, Place place) noexcept {
        if (place == Place::small) return take_small(region->small_at(address));
        return place == Place::large ? take_large(region, address) : Block{};
    }

    // Puts a block in, where room_for() made room. What is found where its words go was freed behind our back: each
    // such block is taken out and given to stale(block). There can be three: a small one, the large one around it, and
    // one in the next granule.
    template <typename Stale>
    [[gnu::always_inline]] static void insert(Region* region, std::uintptr_t address, std::uint64_t bytes,
                                              std::uint32_t account, Stale stale) noexcept {
        if (bytes >= kLargeBytes) return insert_large(region, address, bytes, account, stale);
        std::uint32_t* small = region->small_at(address);
        if (region->stretch_at(address) != Region::kUsed) [[unlikely]]
            prepare_stretch(region, address, stale);
        if (*small != 0) [[unlikely]]
            hand_over(evict_small(small, address), stale);
        if (bytes > kSmallest && small[1] != 0) [[unlikely]]
            hand_over(take_small(small + 1), stale);
        write_small(small, bytes, account);
    }

    // The same for a small block in a stretch that has no large ones, where insert() finds nothing in its way; else
    // nothing is done, and returns false.
    [[gnu::always_inline]] static bool insert_small_fast(Region* region, std::uintptr_t address, std::uint64_t bytes,
                                                         std::uint32_t account) noexcept {
        std::uint32_t* small = region->small_at(address);
        if (!has_small_only(region, address) || (bytes <= kSmallest ? *small : both_words(small)) != 0) return false;
        write_small(small, bytes, account);
        return true;
    }
    // And for a large one of a size that needs one word.
    [[gnu::always_inline]] static bool insert_large_fast(Region* region, std::uintptr_t address, std::uint64_t bytes,
                                                         std::uint32_t account) noexcept {
        std::uint64_t* const large = region->find_large(address);
        if (large == nullptr) return false;
        std::uint8_t& stretch = region->stretch_at(address);
        if (*large != 0 || bytes > kSizeMask || ((stretch & Region::kUsed) != 0 && *region->small_at(address) != 0))
            return false;
        change_stretch(stretch, Region::kOneLarge);
        *large = large_word(address, bytes, account);
        return true;
    }

    // For threads that share the lock. Each touches the words of its own blocks alone; what is known of a stretch is
    // common. False, and nothing is done, where something is in the way, or there are no words yet.
    static bool insert_shared(Region* region, std::uintptr_t address, std::uint64_t bytes,
                              std::uint32_t account) noexcept {
        std::uint64_t* const large = region->find_large(address);
        if (large == nullptr) return false;
        std::uint8_t& stretch = region->stretch_at(address);
        const bool is_used = (__atomic_load_n(&stretch, __ATOMIC_RELAXED) & Region::kUsed) != 0;
        std::uint32_t* const small = region->small_at(address);
        const std::uint64_t around = __atomic_load_n(large, __ATOMIC_RELAXED);
        if (is_used && *small != 0) return false;
        if (bytes >= kLargeBytes) {
            if (around != 0 || bytes > kSizeMask) return false;
            put_large<true>(region, address, 0, large_word(address, bytes, account));
            return true;
        }
        if (!is_used && !region->has_small(address)) return false;
        if (around != 0 && offset_of(around) <= offset(address)) return false;
        if (!is_used) {
            claim(region, address);
            __atomic_fetch_or(&stretch, Region::kUsed, __ATOMIC_RELEASE);
        }
        if (bytes > kSmallest && small[1] != 0) return false;
        write_small(small, bytes, account);
        return true;
    }
    [[gnu::always_inline]] static void remove_shared(Region* region, std::uintptr_t address, Place place) noexcept {
        if (place == Place::small) take_small(region->small_at(address));
        if (place == Place::large) take_large<true>(region, address);
    }
    [[gnu::always_inline]] static Block find_block(const Region* region, std::uintptr_t address, Place place) noexcept {
        if (place == Place::large) return read_large(region->large_at(address));
        return place == Place::small ? read_small(region->small_at(address)) : Block{};
    }
    // For a stretch that has small blocks alone: the word of the one that starts at the address, or null.
    using SmallBlock = std::uint32_t*;
    [[gnu::always_inline]] static SmallBlock find_small_fast(const Region* region, std::uintptr_t address) noexcept {
        std::uint32_t* const small = region->small_at(address);
        return starts(*small) ? small : nullptr;
    }
    [[gnu::always_inline]] static Block remove_small_fast(SmallBlock block) noexcept { return take_small(block); }
    // For any stretch: removes the block that starts at the address. Account 0 when none does. Under the lock.
    [[gnu::always_inline]] static Block remove_any_size(Region* region, std::uintptr_t address) noexcept {
        std::uint8_t& stretch = region->stretch_at(address);
        if (stretch > Region::kUsed) {
            std::uint64_t* const large = region->large_at(address);
            if (is_large_at(*large, address)) {
                if ((*large & kMoreSize) != 0) [[unlikely]]
                    return take_large(region, address);
                const Block block{static_cast<std::uint32_t>(*large) & kAccountMask, *large >> kSizeShift};
                change_stretch(stretch, static_cast<std::uint8_t>(-Region::kOneLarge));
                __atomic_store_n(large, 0, __ATOMIC_RELAXED);
                return block;
            }
        }
        if ((stretch & Region::kUsed) == 0) return {};
        std::uint32_t* const small = region->small_at(address);
        return starts(*small) ? take_small(small) : Block{};
    }
    // Relaxed: the words are read after the lock is acquired, and who took a block's memory first counted it here.
    static bool has_small_only(Region* region, std::uintptr_t address) noexcept {
        return holds(region->stretch_at(address), Region::kUsed);
    }

    // Takes a block out; account 0 when none starts there.
    Block remove(std::uintptr_t address) noexcept {
        Region* region = find(address);
        return region == nullptr ? Block{} : remove_any_size(region, address);
    }

    Block find_block(std::uintptr_t address) const noexcept {
        Region* region = find(address);
        return region == nullptr ? Block{} : find_block(region, address, place_of(region, address));
    }

    // Calls visit(address, block) for every block. O(stretches that have had blocks).
    template <typename Visit>
    void each(Visit visit) const {
        each_stretch([&](const Region& region, std::uintptr_t start, std::uintptr_t end) {
            const std::uint8_t stretch = region.stretch_at(start);
            const auto visit_words = [&](const auto* first, std::uintptr_t step, auto visit_word) {
                for (const auto *word = first, *last = first + (end - start) / step; word < last; ++word)
                    if (starts(*word)) visit_word(start + static_cast<std::uintptr_t>(word - first) * step, word);
            };
            if (stretch >= Region::kOneLarge)
                visit_words(region.large_at(start), kLargeStep, [&](std::uintptr_t at, const std::uint64_t* word) {
                    visit(at + (offset_of(*word) << 4), read_large(word));
                });
            if ((stretch & Region::kUsed) != 0)
                visit_words(region.small_at(start), kSmallStep,
                            [&](std::uintptr_t at, const std::uint32_t* word) { visit(at, read_small(word)); });
        });
    }

    // O(chunks). Every stretch counts the words of large blocks that lie in it.
    bool is_consistent() const {
        bool sound = true;
        each_stretch([&](const Region& region, std::uintptr_t start, std::uintptr_t end) {
            if (end % Region::kChunkBytes == 0) end += kLargeStep;  // the word behind
            std::size_t words = 0;
            for (std::uint64_t *word = region.large_at(start), *last = word + (end - start) / kLargeStep; word < last;
                 ++word)
                words += *word != 0;
            const std::uint8_t stretch = region.stretch_at(start);
            sound = sound && stretch / Region::kOneLarge == words &&
                    ((stretch & Region::kUsed) == 0 || region.has_small(start));
        });
        return sound;
    }

private:
    static constexpr std::uintptr_t kLargeStep = std::uintptr_t{1} << Region::kLargeShift,
                                    kSmallStep = std::uintptr_t{1} << Region::kSmallShift;

    template <typename Visit>  // visit(region, start, end), of the chunks that have words
    void each_stretch(Visit visit) const {
        each_chunk([&](const Region& region, std::uintptr_t chunk) {
            for (std::uintptr_t at = chunk; at < chunk + Region::kChunkBytes; at += Region::kStretchBytes)
                visit(region, at, at + Region::kStretchBytes);
        });
    }

    static constexpr std::uint32_t kContinued = 1u << 31;
    static constexpr std::uint32_t kAccountMask = kMaxAccount;
    static constexpr unsigned kCodeShift = 26;
    static constexpr std::size_t kTogether = 8;  // stretches that get the pages of their small words in one call
    static constexpr std::uint64_t kSmallest = 16;
    static constexpr std::uint32_t kSizeBehind = 17;

    static constexpr std::uint64_t kLargeContinued = std::uint64_t{1} << 63;
    static constexpr std::uint64_t kMoreSize = std::uint64_t{1} << 31;
    static constexpr unsigned kOffsetShift = 26, kSizeShift = 32;
    static constexpr std::uint64_t kSizeMask = (std::uint64_t{1} << 31) - 1;

    // Whether a word is the first one of its chunk.
    static bool is_first(std::uintptr_t address, std::uintptr_t step) noexcept {
        return address % Region::kChunkBytes < step;
    }
    static std::uint64_t offset(std::uintptr_t address) noexcept { return address >> 4 & 31; }
    static std::uint64_t offset_of(std::uint64_t word) noexcept { return word >> kOffsetShift & 31; }
    // Whether a block starts at the word: it is not 0, and its top bit is.
    static bool starts(std::uint32_t word) noexcept { return static_cast<std::int32_t>(word) > 0; }
    static bool starts(std::uint64_t word) noexcept { return static_cast<std::int64_t>(word) > 0; }
    static bool is_large_at(std::uint64_t word, std::uintptr_t address) noexcept {
        return starts(word) && offset_of(word) == offset(address);
    }

    // A page of the table that is first read and then written faults twice: the kernel lends its zero page for the
    // reading, and takes it back at the writing with an interrupt to every processor. A first touch that counts as a
    // write saves that. Heaps grow from one end to the other, so the pages around are wanted soon: a call for some
    // costs little more than a fault for one.
    static void claim(Region* region, std::uintptr_t address) noexcept {
        constexpr std::size_t kWordBytes = Region::kStretchBytes / kSmallStep * sizeof(std::uint32_t);  // of a stretch
        static_assert(kTogether * kWordBytes % kPage == 0);
        const std::uintptr_t first = address & ~(kTogether * Region::kStretchBytes - 1);
        if (used_of(&region->stretch_at(first)) == 1)
            touch_pages(region->small_at(first), kTogether * kWordBytes, (kTogether - 1) * kWordBytes);
        std::uint32_t* const word = region->small_at(address);
#if defined(__x86_64__)
        asm volatile("addl $0, %0" : "+m"(*word) : : "cc");
#else
        __atomic_fetch_add(word, 0, __ATOMIC_RELAXED);
#endif
    }

    // How many of the stretches that get their pages together have had one.
    static int used_of(const std::uint8_t* stretches) noexcept {
        std::uint64_t used = 0;
        static_assert(sizeof used == kTogether && offsetof(Region, stretch) % kTogether == 0);
        const std::uint64_t together =  // of all at once: threads that share the lock change them
            __atomic_load_n(reinterpret_cast<const std::uint64_t*>(stretches), __ATOMIC_RELAXED);
        __builtin_memset(&used, Region::kUsed, sizeof used);
        return std::popcount(together & used);
    }

    static Block read_small(const std::uint32_t* word) noexcept {
        const std::uint32_t code = *word >> kCodeShift;
        return {*word & kAccountMask, code <= kSmallest ? code : word[1] & ~kContinued};
    }
    static void write_small(std::uint32_t* word, std::uint64_t bytes, std::uint32_t account) noexcept {
        if (bytes <= kSmallest) {
            *word = (static_cast<std::uint32_t>(bytes) << kCodeShift) | account;
        } else {
            set_both_words(word, (kContinued | bytes) << 32 | (kSizeBehind << kCodeShift) | account);
        }
    }
    [[gnu::always_inline]] static Block take_small(std::uint32_t* word) noexcept {
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
    static void set_both_words(std::uint32_t* word, std::uint64_t both) noexcept {
        __builtin_memcpy(word, &both, sizeof both);
    }

    static Block read_large(const std::uint64_t* word) noexcept {
        std::uint64_t bytes = *word >> kSizeShift & kSizeMask;
        if ((*word & kMoreSize) != 0) [[unlikely]]
            bytes |= (word[1] & ~kLargeContinued) << 31;
        return {static_cast<std::uint32_t>(*word) & kAccountMask, bytes};
    }
    static std::uint64_t large_word(std::uintptr_t address, std::uint64_t bytes, std::uint32_t account) noexcept {
        return (bytes & kSizeMask) << kSizeShift | offset(address) << kOffsetShift | account;
    }
    template <bool kApart = false>
    static Block take_large(Region* region, std::uintptr_t address) noexcept {
        const std::uint64_t* const word = region->large_at(address);
        const Block block = read_large(word);
        if ((*word & kMoreSize) != 0) [[unlikely]]
            put_large<kApart>(region, address, 1, 0);
        put_large<kApart>(region, address, 0, 0);
        return block;
    }
    // The word of a large block, or the one behind it, becomes one or ceases to be one. The word behind a chunk counts
    // with its last stretch.
    template <bool kApart = false>
    static void put_large(Region* region, std::uintptr_t address, std::size_t behind, std::uint64_t value) noexcept {
        std::uint64_t* const word = region->large_at(address) + behind;
        const std::uintptr_t next = address + behind * kLargeStep;
        std::uint8_t& stretch = region->stretch_at(is_first(next, kLargeStep) ? address : next);
        const auto by = static_cast<std::uint8_t>(Region::kOneLarge * ((value != 0) - (*word != 0)));
        if constexpr (kApart) {
            __atomic_fetch_add(&stretch, by, __ATOMIC_RELAXED);
        } else {
            change_stretch(stretch, by);
        }
        __atomic_store_n(word, value, __ATOMIC_RELAXED);
    }
    // Under the lock; it is read without: who sees kUsed sees the table, too.
    static void change_stretch(std::uint8_t& stretch, std::uint8_t by) noexcept {
        __atomic_store_n(&stretch, static_cast<std::uint8_t>(stretch + by), __ATOMIC_RELEASE);
    }

    template <typename Stale>
    static void hand_over(const Block& block, Stale& stale) {
        if (block.account != 0) stale(block);
    }

    // Before a small block goes into a stretch that is new, or has large blocks.
    template <typename Stale>
    static void prepare_stretch(Region* region, std::uintptr_t address, Stale& stale) noexcept {
        std::uint8_t& stretch = region->stretch_at(address);
        if ((stretch & Region::kUsed) == 0) {
            claim(region, address);
            change_stretch(stretch, Region::kUsed);
        }
        std::uint64_t* large = region->large_at(address);
        if (*large != 0 && offset_of(*large) <= offset(address)) [[unlikely]]
            hand_over(evict_large(region, address), stale);
    }

    template <typename Stale>
    static void insert_large(Region* region, std::uintptr_t address, std::uint64_t bytes, std::uint32_t account,
                             Stale& stale) noexcept {
        std::uint64_t* large = region->large_at(address);
        std::uint32_t* small = region->small_at(address);
        if (*large != 0) [[unlikely]]
            hand_over(evict_large(region, address), stale);
        if ((region->stretch_at(address) & Region::kUsed) != 0 && *small != 0) [[unlikely]]
            hand_over(evict_small(small, address), stale);
        const std::uint64_t more = bytes > kSizeMask ? kMoreSize : 0;
        if (more != 0 && large[1] != 0) [[unlikely]]
            hand_over(take_behind(region, address), stale);
        put_large(region, address, 0, large_word(address, bytes, account) | more);
        if (more != 0) [[unlikely]]
            put_large(region, address, 1, kLargeContinued | bytes >> 31);
    }

    // What lies where a new block starts: a block that starts there too, or the size word of one that started a granule
    // before.
    [[gnu::noinline]] static Block evict_small(std::uint32_t* word, std::uintptr_t address) noexcept {
        if ((*word & kContinued) != 0) {
            if (is_first(address, kSmallStep)) return *word = 0, Block{};
            --word;
        }
        return take_small(word);
    }
    [[gnu::noinline]] static Block evict_large(Region* region, std::uintptr_t address) noexcept {
        if ((*region->large_at(address) & kLargeContinued) == 0) return take_large(region, address);
        if (is_first(address, kLargeStep)) return put_large(region, address, 0, 0), Block{};
        return take_large(region, address - kLargeStep);
    }
    // What is where a block keeps the rest of its size.
    [[gnu::noinline]] static Block take_behind(Region* region, std::uintptr_t address) noexcept {
        if (!is_first(address + kLargeStep, kLargeStep)) return take_large(region, address + kLargeStep);
        return put_large(region, address, 1, 0), Block{};
    }
};

}  // namespace hiwater
