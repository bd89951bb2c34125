// Reads the rule of a return address from a module's `.eh_frame_hdr` and `.eh_frame`. Every read is bounded: a module
// may hold anything there. No heap, no lock, no call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "unwind/cfi_program.h"
#include "unwind/rule.h"

namespace hiwater::unwind {

class RuleReader {
public:
    // Also `code`: where the module's instructions are, of which the beginning of a function is read where no rule can
    // be followed.
    Rule rule_of(const Bytes& tables, const std::uint8_t* header, const Bytes& code,
                 std::uintptr_t return_address) noexcept;
    // Where a module may be another than before.
    void forget() noexcept { fde_ = nullptr; }

private:
    bool begin(const Bytes& tables, const std::uint8_t* header, const std::uint8_t* at) noexcept;

    const std::uint8_t* fde_ = nullptr;  // the entry of the function that what follows is of
    std::uint64_t start_ = 0, bytes_ = 0;
    bool is_understood_ = false;
    Program program_;
};

}  // namespace hiwater::unwind
