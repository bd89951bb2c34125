#include "stacks/ownership.h"

#include <new>

namespace hiwater {

// A '*' takes as little as it can; where the rest does not match, the last one takes one character more.
bool matches(std::string_view pattern, std::string_view text) noexcept {
    std::size_t at = 0, in_text = 0, behind_star = pattern.npos, taken = 0;
    while (in_text < text.size()) {
        if (at < pattern.size() && pattern[at] == '*') {
            behind_star = ++at;
            taken = in_text;
        } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == text[in_text])) {
            ++at;
            ++in_text;
        } else if (behind_star != pattern.npos) {
            at = behind_star;
            in_text = ++taken;
        } else {
            return false;
        }
    }
    return pattern.find_first_not_of('*', at) == pattern.npos;
}

capture::Owner Ownership::classify(std::string_view file) const noexcept {
    for (const OwnerRule& rule : rules_)
        if (matches(rule.pattern, file)) return rule.owner;
    return capture::Owner::library;
}

capture::Owner Ownership::owner_of(std::uint32_t text, std::string_view file) {
    if (text >= known_.size()) known_.resize(text + 1);
    std::uint8_t& known = known_[text];
    if (known == 0) known = static_cast<std::uint8_t>(1 + static_cast<unsigned>(classify(file)));
    return static_cast<capture::Owner>(known - 1);
}

void Ownership::forget_in_child() noexcept { ::new (static_cast<void*>(&known_)) PageVector<std::uint8_t>(); }

}  // namespace hiwater
