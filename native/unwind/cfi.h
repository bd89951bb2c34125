// Reads the rule of a return address from a module's `.eh_frame_hdr` and `.eh_frame`. Every read is bounded: a module
// may hold anything there. No heap, no lock, no call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "unwind/rule.h"

namespace hiwater::unwind {

// The bytes of a module that can be read, which hold both sections.
struct Bytes {
    const std::uint8_t* start = nullptr;
    const std::uint8_t* end = nullptr;
};

// Also `code`: where the module's instructions are, of which the beginning of a function is read where no rule can be
// followed.
Rule rule_of(const Bytes& tables, const std::uint8_t* header, const Bytes& code,
             std::uintptr_t return_address) noexcept;

}  // namespace hiwater::unwind
