// What the result of a walk depends on: whoever finds the same at another event has the same stack, without a walk.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hiwater::unwind {

// The words between a hook and the interpreter's loop that lead from frame to frame, by their distances from the
// stack pointer. The rule of an address says at which distance its caller's address is. Where it needs the frame
// pointer for that, the distance of what this points to belongs to the path, too. So, from the first frame on, equal
// words are equal frames.
class Path {
public:
    static constexpr std::uint32_t kMost = 40;
    // Whoever compares has a frame that begins by saving the frame pointer: this is the word below its return address.
    static constexpr std::intptr_t kSavedPointer = -16;

    // Whether so much of the stack must be readable, in bytes from the stack pointer.
    std::uint32_t extent() const noexcept { return extent_; }
    std::size_t bytes() const noexcept { return offsetof(Path, word_) + words_ * sizeof *word_; }

    [[gnu::always_inline]] bool stands_at(std::uintptr_t stack_pointer) const noexcept {
        const std::uint64_t* word = word_;
        for (const std::uint64_t* const end = word_ + addresses_; word != end; ++word)
            if (word_at(*word, stack_pointer) != value_of(*word)) return false;
        return words_ == addresses_ || points_same(stack_pointer);
    }

    // To make one: first the addresses. False where there is no room for more, or no path can have it.
    void begin() noexcept { extent_ = 0, addresses_ = words_ = 0; }
    bool add_address(std::uintptr_t at, std::uintptr_t address, std::uintptr_t stack_pointer) noexcept {
        return add(at, address, stack_pointer) && ++addresses_ == words_;
    }
    bool add_pointer(std::uintptr_t at, std::uintptr_t pointer, std::uintptr_t stack_pointer) noexcept {
        return add(at, pointer - stack_pointer, stack_pointer);
    }

private:
    // A word and where it is, in one: the distance in words from the lowest place, and the value below.
    static constexpr int kValueBits = 48;
    static constexpr std::uint64_t value_of(std::uint64_t word) noexcept {
        return word & ((std::uint64_t{1} << kValueBits) - 1);
    }
    [[gnu::always_inline]] static std::uintptr_t word_at(std::uint64_t word, std::uintptr_t stack_pointer) noexcept {
        const auto* const lowest = reinterpret_cast<const std::uintptr_t*>(stack_pointer + kSavedPointer);
        return lowest[word >> kValueBits];
    }
    [[gnu::noinline]] bool points_same(std::uintptr_t stack_pointer) const noexcept {
        for (std::uint32_t i = addresses_; i < words_; ++i)
            if (word_at(word_[i], stack_pointer) - stack_pointer != value_of(word_[i])) return false;
        return true;
    }

    bool add(std::uintptr_t at, std::uintptr_t value, std::uintptr_t stack_pointer) noexcept {
        const std::uintptr_t distance = at - stack_pointer - kSavedPointer;
        if (words_ == kMost || distance % 8 != 0 || distance / 8 >> (64 - kValueBits) != 0 || value_of(value) != value)
            return false;
        if (const auto end = static_cast<std::uint32_t>(distance + 8 + kSavedPointer); distance >= 8 && end > extent_)
            extent_ = end;
        word_[words_++] = distance / 8 << kValueBits | value;
        return true;
    }

    std::uint32_t extent_;
    std::uint16_t addresses_, words_;  // those after the addresses are compared less the stack pointer
    std::uint64_t word_[kMost];        // as many as there are, of a path that is kept
};

}  // namespace hiwater::unwind
