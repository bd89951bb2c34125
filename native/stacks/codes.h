// Code objects and instructions: which code record and line each belongs to, and whose code it is. Callers hold the
// recorder's lock.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "session/options.h"
#include "stacks/call_tree.h"
#include "stacks/ownership.h"
#include "stacks/thread_state.h"

namespace hiwater {

class Codes {
public:
    // Whose code it is: bits.
    static constexpr std::uint8_t kInternal = 1, kLauncher = 2, kOwn = 8, kGenerated = 16;
    struct Position {
        const void* instr;
        std::uint32_t generation;  // of the page of code that it is in
        std::uint32_t code, line;
        std::uint8_t kind;
    };

    explicit Codes(CallTree& tree) noexcept : tree_(tree) {}
    void begin(const StartOptions& options);
    const char* internal_prefix() const noexcept { return internal_prefix_.c_str(); }

    // What the instruction of a slot is part of; null where a frame that stands there does not count.
    const Position* position_of(Thread& t, const hw_slot& slot, const void* object);
    // The same for a frame of a thread that waits, of which only the kernel may read.
    const Position* position_of_waiting(const void* object, const void* instr);
    // position_of() is asked for it next.
    void expect(const hw_slot& slot) const noexcept { __builtin_prefetch(&positions_[place_of(slot.instr)]); }
    void reset() noexcept;
    // In the child of a fork: the pages are gone already.
    void forget_in_child() noexcept;

private:
    std::uint32_t code_of(const hw_code_info& info);
    std::uint32_t code_of(std::string_view function, std::string_view file, std::int32_t first_line, bool is_generated);
    std::uint8_t kind_of(std::uint32_t code, bool is_generated) {
        return static_cast<std::uint8_t>(class_of(code) | (is_generated ? kGenerated : 0));
    }
    std::uint8_t classify(std::string_view function, std::string_view file) const noexcept;
    std::uint8_t class_of(std::uint32_t code);

    static constexpr std::size_t kPositions = 8192;
    static std::size_t place_of(const void* instr) noexcept {
        return mix(reinterpret_cast<std::uintptr_t>(instr)) % kPositions;
    }

    CallTree& tree_;
    std::string internal_prefix_, own_script_;
    std::string command_;  // what stands for the file of the text of `-c`; "" where none was given
    Ownership ownership_;
    PageVector<std::uint8_t> class_;  // by code; 0x80: known
    PageVector<Position> positions_;  // met lately, each in the one place there is for it
    // Of a frame of a thread that waits: what was copied, and the position where it may be kept no longer.
    PageVector<hw_copied_code> copied_;  // one
    Position waiting_{};
};

}  // namespace hiwater
