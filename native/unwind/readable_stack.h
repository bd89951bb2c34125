// Which stretch of memory around a thread's stack pointer can be read. Asked of the kernel, page by page and once for
// each: a rule that is wrong must not lead a walk to where there is nothing.
#pragma once

#include <cstdint>

#include "base/pages.h"

namespace hiwater::unwind {

// The thread's own, or that of a fiber, which is learnt again whenever the thread stands on another stack.
class ReadableStack {
public:
    bool covers(std::uintptr_t stack_pointer) const noexcept { return stack_pointer >= low_ && stack_pointer < end_; }
    // For one that it does not cover: a walk begins there. False where nothing can be read.
    [[gnu::cold, gnu::noinline]] bool begin(std::uintptr_t stack_pointer) noexcept {
        const std::uintptr_t page = stack_pointer & ~(kPage - 1);
        bool has_grown = page < low_ && low_ - page <= kMostBelow;
        for (std::uintptr_t at = page; has_grown && at < low_; at += kPage) has_grown = can_be_read(at);
        if (!has_grown) {
            if (!can_be_read(page)) return false;
            end_ = page + kPage;
        }
        low_ = page;
        return true;
    }
    std::uintptr_t end() const noexcept { return end_; }  // as far as it is known to be readable
    // Whether the word at an address above the stack pointer can be read.
    bool holds(std::uintptr_t at) noexcept { return at < end_ - sizeof at || grow_to(at); }

private:
    static constexpr std::uintptr_t kMostBelow = 256 * kPage, kLargestFrame = 8 << 20;

    static bool can_be_read(std::uintptr_t page) noexcept;
    [[gnu::cold, gnu::noinline]] bool grow_to(std::uintptr_t at) noexcept {
        if (at - end_ > kLargestFrame && at >= end_) return false;
        while (at >= end_ - sizeof at) {
            if (!can_be_read(end_)) return false;
            end_ += kPage;
        }
        return true;
    }

    std::uintptr_t low_ = 0, end_ = 0;
};

}  // namespace hiwater::unwind
