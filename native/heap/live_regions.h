// The memory of the table of live blocks (live_table.h): which of its words there are, and how it grows. Little is
// mapped for a program with few blocks, as address space may be limited (`ulimit -v`).
//
//   region   4 GiB of address space: a byte for each stretch of 16 KiB, and where the words of its chunks are
//   chunk    2 MiB of a region: the words of large blocks (36 KiB), and, once it has a small block, those of small
//            ones (516 KiB)
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>

#include "base/raw_calls.h"
#include "lock/lock.h"
#include "base/page_stock.h"

namespace hiwater {

// It stays where it is for the life of the process.
struct Region {
    static constexpr unsigned kShift = 32, kChunkShift = 21, kStretchShift = 14, kLargeShift = 9, kSmallShift = 4;
    static constexpr std::size_t kStretches = std::size_t{1} << (kShift - kStretchShift);
    static constexpr std::size_t kChunks = std::size_t{1} << (kShift - kChunkShift);
    static constexpr std::uintptr_t kChunkBytes = std::uintptr_t{1} << kChunkShift,
                                    kStretchBytes = std::uintptr_t{1} << kStretchShift;
    // kUsed where a stretch ever had a small block, and kOneLarge for each word of large blocks in it. An event of one
    // kind of block learns here whether it must read the other table, which it mostly need not.
    static constexpr std::uint8_t kUsed = 1, kOneLarge = 2;

    // For each chunk, where the words of the region's first address would be if they went back as far. 0: there are
    // none. Who has words for small blocks has those for large ones.
    std::uintptr_t small[kChunks], large[kChunks];
    std::uint8_t stretch[kStretches];
    std::uint32_t number;  // plus one

    // In 32 bits, but for the stretch: it saves an instruction of each event.
    static_assert(kShift == 32);
    static std::uint32_t in_region(std::uintptr_t address) noexcept { return static_cast<std::uint32_t>(address); }
    static std::uint32_t chunk_of(std::uintptr_t address) noexcept { return in_region(address) >> kChunkShift; }
    static std::size_t stretch_of(std::uintptr_t address) noexcept {
        return address >> kStretchShift & (kStretches - 1);
    }
    [[gnu::always_inline]] std::uint8_t& stretch_at(std::uintptr_t address) noexcept {
        return stretch[stretch_of(address)];
    }
    [[gnu::always_inline]] std::uint8_t stretch_at(std::uintptr_t address) const noexcept {
        return stretch[stretch_of(address)];
    }
    // Relaxed: callers have acquired the lock, or the stretch that says that there are words.
    [[gnu::always_inline]] std::uint32_t* small_at(std::uintptr_t address) const noexcept {
        return reinterpret_cast<std::uint32_t*>(__atomic_load_n(&small[chunk_of(address)], __ATOMIC_RELAXED) +
                                                (in_region(address) >> kSmallShift) * sizeof(std::uint32_t));
    }
    [[gnu::always_inline]] std::uint64_t* large_at(std::uintptr_t address) const noexcept {
        return reinterpret_cast<std::uint64_t*>(__atomic_load_n(&large[chunk_of(address)], __ATOMIC_RELAXED) +
                                                (in_region(address) >> kLargeShift) * sizeof(std::uint64_t));
    }
    // The same, or null where the chunk has no words.
    [[gnu::always_inline]] std::uint64_t* find_large(std::uintptr_t address) const noexcept {
        const std::uintptr_t words = __atomic_load_n(&large[chunk_of(address)], __ATOMIC_ACQUIRE);
        if (words == 0) return nullptr;
        const std::uintptr_t word = words + (in_region(address) >> kLargeShift) * sizeof(std::uint64_t);
        if (word == 0) __builtin_unreachable();  // callers compare with null: once is enough
        return reinterpret_cast<std::uint64_t*>(word);
    }
    [[gnu::always_inline]] bool has_large(std::uintptr_t address) const noexcept {
        return __atomic_load_n(&large[chunk_of(address)], __ATOMIC_ACQUIRE) != 0;
    }
    [[gnu::always_inline]] bool has_small(std::uintptr_t address) const noexcept {
        return __atomic_load_n(&small[chunk_of(address)], __ATOMIC_ACQUIRE) != 0;
    }
};

// There are blocks at another address that find() does not tell from this one.
struct SharedRegion : std::exception {};

class LiveRegions {
public:
    ~LiveRegions() { unmap_pages(directory_, kDirectoryBytes); }

    // False where there is no memory for it.
    bool init() noexcept {
        if (directory_ == nullptr) directory_ = static_cast<Region**>(map_pages(kDirectoryBytes));
        return directory_ != nullptr;
    }

    // Null where nothing was ever put near the address. Addresses that differ above kAddressBits alone find one region:
    // to compare would cost each event, so with_words() refuses the second.
    [[gnu::always_inline]] Region* find(std::uintptr_t address) const noexcept {
        return __atomic_load_n(&directory_[static_cast<std::uint16_t>(address >> Region::kShift)], __ATOMIC_ACQUIRE);
    }

    // The region of an address with the words for a block there, made where they are not. Throws bad_alloc, or
    // SharedRegion. Safe without the recorder's lock, which may be held.
    Region* with_words(std::uintptr_t address, bool is_small) {
        Region* const region = find(address);
        const bool is_ready = region != nullptr && (is_small ? region->has_small(address) : region->has_large(address));
        return is_ready ? region : make_room(address, is_small);
    }

    // Forgets every block: every word is zero again. All stays mapped, as another thread may be about to read it.
    void empty() noexcept {
        each([](Region& region) { platform::give_back(region.stretch, sizeof region.stretch); });
        small_words_.give_pages_back();
        large_words_.give_pages_back();
    }
    // Calls work() while the child of a fork would have the words as they are here; it is without them otherwise.
    template <typename Work>
    void kept_at_fork(const Work& work) noexcept {
        UninterruptedHold hold(growth_);
        for (const PageStock* stock : {&small_words_, &large_words_}) stock->keep_at_fork(true);
        work();
        for (const PageStock* stock : {&small_words_, &large_words_}) stock->keep_at_fork(false);
    }
    // In the child of a fork: a thread that is not here may have been about to map something.
    void forget_growth() noexcept { growth_.reset(); }

    template <typename Visit>  // visit(region)
    void each(Visit visit) const {
        regions_.each([&](void* at) {
            if (auto& region = *static_cast<Region*>(at); __atomic_load_n(&region.number, __ATOMIC_ACQUIRE) != 0)
                visit(region);
        });
    }
    template <typename Visit>  // visit(region, address of its first byte)
    void each_chunk(Visit visit) const {
        each([&](const Region& region) {
            const std::uintptr_t base = (region.number - std::uintptr_t{1}) << Region::kShift;
            for (std::uintptr_t at = base; at < base + Region::kChunks * Region::kChunkBytes; at += Region::kChunkBytes)
                if (region.has_large(at)) visit(region, at);
        });
    }

    // Of these tables, as the kernel counts them.

private:
    static constexpr std::size_t kRegions = std::size_t{1} << (kAddressBits - Region::kShift);
    static constexpr std::size_t kDirectoryBytes = kRegions * sizeof(Region*);
    // Behind the words of a chunk, one for the size of its last block.
    static constexpr std::size_t kSmallBytes =
        (Region::kChunkBytes >> Region::kSmallShift) * sizeof(std::uint32_t) + kPage;
    static constexpr std::size_t kLargeBytes =
        (Region::kChunkBytes >> Region::kLargeShift) * sizeof(std::uint64_t) + kPage;

    static std::uint32_t number_of(std::uintptr_t address) noexcept {
        return static_cast<std::uint32_t>(address >> Region::kShift);
    }
    [[gnu::noinline]] Region* make_room(std::uintptr_t address, bool is_small) {
        UninterruptedHold hold(growth_);
        Region* region = find(address);
        if (region == nullptr) region = make_region(address);
        if (region->number != number_of(address) + 1) throw SharedRegion();
        if (!region->has_large(address))
            make_words(region->large, large_words_, address, Region::kLargeShift, sizeof(std::uint64_t));
        if (is_small && !region->has_small(address))
            make_words(region->small, small_words_, address, Region::kSmallShift, sizeof(std::uint32_t));
        return region;
    }
    Region* make_region(std::uintptr_t address) {
        auto* const region = address >> kMostAddressBits == 0 ? static_cast<Region*>(regions_.take()) : nullptr;
        if (region == nullptr) throw std::bad_alloc();
        __atomic_store_n(&region->number, number_of(address) + 1, __ATOMIC_RELEASE);
        __atomic_store_n(&directory_[number_of(address) % kRegions], region, __ATOMIC_RELEASE);
        return region;
    }
    static void make_words(std::uintptr_t* of_chunk, PageStock& stock, std::uintptr_t address, unsigned shift,
                           std::size_t word_bytes) {
        const auto words = reinterpret_cast<std::uintptr_t>(stock.take());
        if (words == 0) throw std::bad_alloc();
        const std::uintptr_t first = Region::in_region(address) & ~(Region::kChunkBytes - 1);
        __atomic_store_n(&of_chunk[Region::chunk_of(address)], words - (first >> shift) * word_bytes, __ATOMIC_RELEASE);
    }

    Region** directory_ = nullptr;
    PageStock regions_{round_up(sizeof(Region), kPage)}, small_words_{kSmallBytes, true},
        large_words_{kLargeBytes, true};
    FutexMutex growth_;  // of who maps
};

}  // namespace hiwater
