#include "stacks/ownership.h"

#include <new>

namespace hiwater {

// The pieces between the '*' must follow each other in the text, the first at its start and the last at its end.
bool matches(std::string_view pattern, std::string_view text) noexcept {
    auto star = pattern.find('*');
    if (star == pattern.npos) return pattern == text;
    if (!text.starts_with(pattern.substr(0, star))) return false;
    text.remove_prefix(star);
    for (pattern.remove_prefix(star + 1); (star = pattern.find('*')) != pattern.npos; pattern.remove_prefix(star + 1)) {
        const auto at = text.find(pattern.substr(0, star));
        if (at == text.npos) return false;
        text.remove_prefix(at + star);
    }
    return text.ends_with(pattern);
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
