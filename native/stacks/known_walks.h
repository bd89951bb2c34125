// Walks of native frames that a thread did before: as long as one would lead to the same frames, it need not be done
// again. And below which Python stacks that was, with the accounts it led to. Bounded: where there is no room for more,
// all are forgotten.
#pragma once

#include <cstddef>
#include <cstdint>

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
        std::uint32_t next;
        std::uint32_t node;  // of the innermost native frame
        unwind::Path path;
    };
    // A walk below one Python stack.
    struct Stack {
        std::uint32_t walk, place, next;
        std::uint32_t account[2];  // 0: not opened yet
    };

    // One whose walk would be the same, the latest that was put at its place: null where that is another.
    // `readable_end`: how far the stack can be read.
    [[gnu::always_inline]] const Stack* find_first(const Key& key, std::uintptr_t readable_end) const noexcept {
        const Stack& stack = at<Stack>(first_stack_[place_of(key, key.top)]);
        return is_same(stack, key, readable_end) ? &stack : nullptr;
    }
    // Any at its place.
    const Stack* find(const Key& key, std::uintptr_t readable_end) const noexcept {
        std::uint32_t number = first_stack_[place_of(key, key.top)];
        for (std::uint32_t i = 0; number != 0 && i < kMostTried; ++i) {
            const Stack& stack = at<Stack>(number);
            if (is_same(stack, key, readable_end)) return &stack;
            number = stack.next;
        }
        return nullptr;
    }
    // The number of a walk that would be the same, below whatever Python stack it was; 0 where none is known.
    std::uint32_t find_walk(const Key& key, std::uintptr_t readable_end) const noexcept {
        std::uint32_t number = first_walk_[place_of(key, nullptr)];
        for (std::uint32_t i = 0; number != 0 && i < kMostWalksTried; ++i) {
            if (is_same(at<Walk>(number), key, readable_end)) return number;
            number = at<Walk>(number).next;
        }
        return 0;
    }
    std::uint32_t node_of(std::uint32_t walk) const noexcept { return at<Walk>(walk).node; }

    std::uint32_t put_walk(const Key& key, const unwind::Path& path, std::uint32_t node) noexcept {
        const std::size_t bytes = offsetof(Walk, path) + path.bytes();
        if (!has_room(bytes)) forget();
        std::uint32_t& first = first_walk_[place_of(key, nullptr)];
        const std::uint32_t number = take(bytes);
        Walk& walk = at<Walk>(number);
        walk.address = key.address;
        walk.next = first;
        walk.node = node;
        __builtin_memcpy(static_cast<void*>(&walk.path), &path, path.bytes());
        return first = number;
    }
    void put(const Key& key, std::uint32_t walk, std::uint32_t kind, std::uint32_t account) noexcept {
        if (!has_room(sizeof(Stack))) return forget();  // the walk, too
        std::uint32_t& first = first_stack_[place_of(key, key.top)];
        const std::uint32_t number = take(sizeof(Stack));
        Stack& stack = at<Stack>(number);
        stack = {walk, key.place, first, {0, 0}};
        stack.account[kind] = account;
        first = number;
    }
    void forget() noexcept {
        zero_pages(first_stack_, sizeof first_stack_);
        zero_pages(first_walk_, sizeof first_walk_);
        zero_pages(room_, used_ * kUnit);
        used_ = 0;
    }

private:
    static constexpr std::size_t kUnit = 8;
    static constexpr int kPlaceBits = 13;
    static constexpr std::uint32_t kMostTried = 4, kMostWalksTried = 8;

    [[gnu::always_inline]] static bool is_same(const Walk& walk, const Key& key, std::uintptr_t readable_end) noexcept {
        return walk.address == key.address && key.stack_pointer + walk.path.extent() <= readable_end &&
               walk.path.stands_at(key.stack_pointer);
    }
    [[gnu::always_inline]] bool is_same(const Stack& stack, const Key& key,
                                        std::uintptr_t readable_end) const noexcept {
        return stack.place == key.place && is_same(at<Walk>(stack.walk), key, readable_end);
    }
    // The same instruction is led to by several paths, mostly of different lengths.
    static std::size_t place_of(const Key& key, const void* top) noexcept {
        const std::uint64_t mixed = key.address ^ (key.stack_pointer + reinterpret_cast<std::uintptr_t>(top)) << 16;
        return mixed * 0x9e3779b97f4a7c15ULL >> (64 - kPlaceBits);
    }
    template <typename Record>
    const Record& at(std::uint32_t number) const noexcept {
        return *reinterpret_cast<const Record*>(room_ + number * kUnit);
    }
    template <typename Record>
    Record& at(std::uint32_t number) noexcept {
        return *reinterpret_cast<Record*>(room_ + number * kUnit);
    }
    bool has_room(std::size_t bytes) const noexcept { return kNone + used_ * kUnit + bytes <= sizeof room_; }
    std::uint32_t take(std::size_t bytes) noexcept {
        if (used_ == 0) used_ = kNone / kUnit;
        const std::uint32_t number = used_;
        used_ += static_cast<std::uint32_t>((bytes + kUnit - 1) / kUnit);
        return number;
    }

    static constexpr std::size_t kNone = (sizeof(Walk) + kUnit - 1) / kUnit * kUnit;  // what number 0 is: no walk
    std::uint32_t used_;                                                              // of the room, in units
    std::uint32_t first_stack_[1 << kPlaceBits], first_walk_[1 << kPlaceBits];
    alignas(8) std::byte room_[2 << 20];
};

}  // namespace hiwater
