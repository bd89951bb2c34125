// Walks of native frames that a thread did before, for the same Python stack: as long as one would lead to the same
// frames, it need not be done again. Bounded: where there is no room for more, all are forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/pages.h"
#include "unwind/path.h"

namespace hiwater {

class KnownWalks {
public:
    struct Key {
        std::uintptr_t address, stack_pointer;  // of the hook's caller
        const void* top;                        // the Python stack: where it is kept
        std::uint32_t place;                    // and what it is
    };
    struct Walk {
        std::uintptr_t address;
        std::uint32_t place, next;
        std::uint32_t account[2];  // 0: not opened yet
        unwind::Path path;
    };

    // A walk that would be the same, the latest that was put at its place: null where that is another.
    // `readable_end`: how far the stack can be read.
    [[gnu::always_inline]] const Walk* find_first(const Key& key, std::uintptr_t readable_end) const noexcept {
        const Walk* const walk = walk_at(first_[place_of(key)]);
        return is_same(*walk, key, readable_end) ? walk : nullptr;
    }
    // Any at its place.
    const Walk* find(const Key& key, std::uintptr_t readable_end) const noexcept {
        std::uint32_t at = first_[place_of(key)];
        for (std::uint32_t i = 0; at != 0 && i < kMostTried; ++i) {
            const Walk* const walk = walk_at(at);
            if (is_same(*walk, key, readable_end)) return walk;
            at = walk->next;
        }
        return nullptr;
    }
    void put(const Key& key, const unwind::Path& path, std::uint32_t kind, std::uint32_t account) noexcept {
        const std::size_t bytes = offsetof(Walk, path) + path.bytes();
        if (used_ * kUnit + bytes > sizeof room_) forget();
        if (used_ == 0) used_ = sizeof(Walk) / kUnit;
        std::uint32_t& first = first_[place_of(key)];
        Walk* const walk = reinterpret_cast<Walk*>(room_ + used_ * kUnit);
        walk->address = key.address;
        walk->place = key.place;
        walk->next = first;
        walk->account[kind] = account;
        walk->account[1 - kind] = 0;
        __builtin_memcpy(static_cast<void*>(&walk->path), &path, path.bytes());
        first = used_;
        used_ += static_cast<std::uint32_t>((bytes + kUnit - 1) / kUnit);
    }
    void forget() noexcept {
        zero_pages(first_, sizeof first_);
        zero_pages(room_, used_ * kUnit);
        used_ = 0;
    }

private:
    static constexpr std::size_t kUnit = 8;
    static constexpr int kPlaceBits = 13;
    static constexpr std::uint32_t kMostTried = 4;

    [[gnu::always_inline]] static bool is_same(const Walk& walk, const Key& key, std::uintptr_t readable_end) noexcept {
        return walk.address == key.address && walk.place == key.place &&
               key.stack_pointer + walk.path.extent() <= readable_end && walk.path.stands_at(key.stack_pointer);
    }
    // The same instruction is led to by several paths, mostly of different lengths.
    static std::size_t place_of(const Key& key) noexcept {
        const std::uint64_t mixed = key.address ^ (key.stack_pointer + reinterpret_cast<std::uintptr_t>(key.top)) << 16;
        return mixed * 0x9e3779b97f4a7c15ULL >> (64 - kPlaceBits);
    }
    const Walk* walk_at(std::uint32_t at) const noexcept { return reinterpret_cast<const Walk*>(room_ + at * kUnit); }

    std::uint32_t used_;  // of the room, in units; at its begin is a walk that is none
    std::uint32_t first_[1 << kPlaceBits];
    alignas(8) std::byte room_[2 << 20];
};

}  // namespace hiwater
