// What setjmp() saved: where the stack will stand after a jump there.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace hiwater {

// A C library keeps the stack pointer in a word of its own, and some disguise it: glibc's is exclusive-ored with a word
// that each process chooses, and on x86-64 rotated.
class JumpPlaces {
public:
    // Finds the word and its disguise from places whose stack pointers are known. Before anybody asks.
    void learn() noexcept;
    bool are_known() const noexcept { return are_known_; }
    std::uintptr_t stack_at(const void* place) const noexcept {
        return std::rotr(static_cast<const std::uintptr_t*>(place)[word_], turn_) ^ mask_;
    }

private:
    bool are_known_ = false;
    std::size_t word_ = 0;
    int turn_ = 0;
    std::uintptr_t mask_ = 0;
};

}  // namespace hiwater
