// Walks of native frames that a thread did before, below which Python stacks that was, and the accounts it led to: as
// long as a walk would lead to the same frames, it need not be done again. Bounded: where there is no room for more,
// one that has been there for long makes place, or all are forgotten.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/pages.h"
#include "capture/format.h"
#include "unwind/path.h"

namespace hiwater {

class KnownWalks {
public:
    struct Key {
        std::uintptr_t address, stack_pointer;  // of the hook's caller
        std::uint32_t place;                    // the Python stack
        capture::Kind kind;
    };

    // The account that a walk would lead to, where it is the last that was found or put at its place; else 0.
    // `readable_end`: how far the stack can be read.
    [[gnu::always_inline]] std::uint32_t account_at(const Key& key, std::uintptr_t readable_end) const noexcept {
        const std::uint64_t which = which_of(key);
        const Stack& stack = set_[place_of(key, which)].stack[0];
        return is_same(stack, which, key, readable_end) ? stack.account : 0;
    }
    // The same of any other; 0 where none is known.
    std::uint32_t find_account(const Key& key, std::uintptr_t readable_end) noexcept {
        const std::uint64_t which = which_of(key);
        Stack* const first = set_[place_of(key, which)].stack;
        for (Stack* stack = first + 1; stack != first + kTogether; ++stack) {
            if (!is_same(*stack, which, key, readable_end)) continue;
            std::swap(*first, *stack);
            return first->account;
        }
        return 0;
    }
    void put(const Key& key, std::uint32_t path, std::uint32_t account) noexcept {
        const std::uint64_t which = which_of(key);
        Set& set = set_[place_of(key, which)];
        for (std::uint32_t i = kTogether - 1; i > 0; --i) set.stack[i] = set.stack[i - 1];
        set.stack[0] = {which, path, account};
    }

    // The number of the path that leads to a node of native frames, if it does so now; 0 where none is known.
    std::uint32_t path_to(std::uint32_t node, const Key& key, std::uintptr_t readable_end) const noexcept {
        const std::uint32_t number = path_to_[node % kPaths];
        return number != 0 && is_same(walk(number), key, readable_end) ? number : 0;
    }
    std::uint32_t put_path(std::uint32_t node, const Key& key, const unwind::Path& path) noexcept {
        const std::size_t bytes = offsetof(Walk, path) + path.bytes();
        if (used_ * kUnit + bytes > sizeof room_) forget();
        if (used_ == 0) used_ = kNone;
        const std::uint32_t number = used_;
        __builtin_memcpy(room_ + number * kUnit, &key.address, sizeof key.address);
        __builtin_memcpy(room_ + number * kUnit + offsetof(Walk, path), &path, path.bytes());
        used_ += static_cast<std::uint32_t>(bytes / kUnit);
        return path_to_[node % kPaths] = number;
    }
    void forget() noexcept {
        zero_pages(set_, sizeof set_);
        zero_pages(path_to_, sizeof path_to_);
        used_ = 0;
    }

private:
    static constexpr std::size_t kUnit = 8;
    static constexpr std::uint32_t kTogether = 4, kPaths = 4096, kNone = 2;  // number 0 is no path
    static constexpr int kSetBits = 11;

    struct Walk {
        std::uintptr_t address;
        unwind::Path path;
    };
    struct Stack {
        std::uint64_t which;  // the Python stack, and of the address what there is room for: a walk has all of it
        std::uint32_t path, account;
    };
    struct alignas(64) Set {
        Stack stack[kTogether];
    };

    static std::uint64_t which_of(const Key& key) noexcept {
        return (key.address ^ std::uint64_t{static_cast<std::uint32_t>(key.kind)} << 31) << 32 | key.place;
    }
    // The same instruction is led to by several paths, mostly of different lengths.
    static std::size_t place_of(const Key& key, std::uint64_t which) noexcept {
        return (which ^ key.stack_pointer << 16) * 0x9e3779b97f4a7c15ULL >> (64 - kSetBits);
    }
    [[gnu::always_inline]] static bool is_same(const Walk& walk, const Key& key, std::uintptr_t readable_end) noexcept {
        return walk.address == key.address && key.stack_pointer + walk.path.extent() <= readable_end &&
               walk.path.stands_at(key.stack_pointer);
    }
    [[gnu::always_inline]] bool is_same(const Stack& stack, std::uint64_t which, const Key& key,
                                        std::uintptr_t readable_end) const noexcept {
        return stack.which == which && is_same(walk(stack.path), key, readable_end);
    }
    const Walk& walk(std::uint32_t number) const noexcept {
        return *reinterpret_cast<const Walk*>(room_ + number * kUnit);
    }

    std::uint32_t used_;  // of the room, in units
    std::uint32_t path_to_[kPaths];
    Set set_[1 << kSetBits];
    alignas(8) std::byte room_[1 << 20];
};

}  // namespace hiwater
