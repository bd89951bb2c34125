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
        const Word* word = word_;
        for (const Word* const end = word_ + addresses_; word != end; ++word)
            if (word->at(stack_pointer) != word->value) return false;
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
    [[gnu::noinline]] bool points_same(std::uintptr_t stack_pointer) const noexcept {
        for (std::uint32_t i = addresses_; i < words_; ++i)
            if (word_[i].at(stack_pointer) - stack_pointer != word_[i].value) return false;
        return true;
    }

    struct Word {
        std::intptr_t distance;  // from the stack pointer
        std::uintptr_t value;
        [[gnu::always_inline]] std::uintptr_t at(std::uintptr_t stack_pointer) const noexcept {
            return *reinterpret_cast<const std::uintptr_t*>(stack_pointer + static_cast<std::uintptr_t>(distance));
        }
    };

    bool add(std::uintptr_t at, std::uintptr_t value, std::uintptr_t stack_pointer) noexcept {
        const auto distance = static_cast<std::intptr_t>(at - stack_pointer);
        if (words_ == kMost || distance > INT32_MAX || distance < kSavedPointer) return false;
        if (const std::intptr_t end = distance + 8; end > std::intptr_t{extent_})
            extent_ = static_cast<std::uint32_t>(end);
        word_[words_++] = {distance, value};
        return true;
    }

    std::uint32_t extent_;
    std::uint16_t addresses_, words_;  // those after the addresses are compared less the stack pointer
    Word word_[kMost];                 // as many as there are, of a path that is kept
};

}  // namespace hiwater::unwind
