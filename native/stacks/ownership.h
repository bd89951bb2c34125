// Whose code it is, from the name of its file: by the first rule whose pattern matches. The rules are
// src/hiwater/_os/ownership.py's; in a pattern, '*' stands for any text, and '?' for one character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/pages.h"
#include "capture/format.h"

namespace hiwater {

struct OwnerRule {
    std::string pattern;
    capture::Owner owner;
};

bool matches(std::string_view pattern, std::string_view text) noexcept;

// Each file is looked at once. Callers hold the recorder's lock.
class Ownership {
public:
    void begin(const std::vector<OwnerRule>& rules) {
        reset();
        rules_ = rules;
    }
    // `text` is the string's number in the capture.
    capture::Owner owner_of(std::uint32_t text, std::string_view file);
    void reset() noexcept { known_.reset(); }
    // In the child of a fork: the pages are gone already.
    void forget_in_child() noexcept;

private:
    capture::Owner classify(std::string_view file) const noexcept;

    std::vector<OwnerRule> rules_;
    PageVector<std::uint8_t> known_;  // by string: 0, not looked at; else 1 + owner
};

}  // namespace hiwater
