// How a frame is left: where its caller's stack pointer was, and where it saved the caller's frame pointer. What
// `.eh_frame` says of one return address, in eight bytes.
#pragma once

#include <cstdint>

namespace hiwater::unwind {

struct Rule {
    enum class Cfa : std::uint8_t {  // the caller's stack pointer, before the call that made this frame
        unknown,                     // no rule that a walk could follow
        end,                         // the outermost frame: it has no caller
        from_rsp,                    // rsp + offset
        from_rbp,                    // rbp + offset
        at_rbp,                      // the word at rbp + offset: a function that realigned its stack
    };
    enum class Rbp : std::uint8_t { same, at_cfa, at_rbp };  // saved nowhere; at CFA or rbp + 8 * rbp_slot
    static constexpr std::uint8_t kLoop = 1;       // a frame of the interpreter's loop: the walk is at its end
    static constexpr std::uint8_t kByPointer = 4;  // not from the table: the function begins by making a frame pointer

    std::int32_t offset;
    std::int8_t rbp_slot;
    Cfa cfa;
    Rbp rbp;
    std::uint8_t flags;

    bool operator==(const Rule&) const = default;
};
static_assert(sizeof(Rule) == 8);

}  // namespace hiwater::unwind
