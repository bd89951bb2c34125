// The headline of a recording: the line of the user's own code to change first. `analysis/user_lines.py` sums in the
// same way from a capture, and has the description. Whose code it is stands in the capture (stacks/ownership.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hiwater {

// The groups have the order of analysis.user_lines.Group.
enum class LineGroup : std::uint8_t { line, waited, imports, other };

template <typename Text>
struct TopLineOf {
    bool is_known = false;  // something is held
    LineGroup group = LineGroup::line;
    Text file, function;
    std::uint32_t line = 0;
    std::int64_t bytes = 0, untouched_bytes = 0;              // of this line; `bytes` are without the untouched ones
    std::int64_t imports_bytes = 0, all_untouched_bytes = 0;  // of all lines
    std::int64_t other_bytes = 0;  // of what no line of the user's called; 0 where there is no such line
};
using TopLine = TopLineOf<std::string>;
using TopLineView = TopLineOf<std::string_view>;  // its texts are the capture's: valid under the lock

// The last request for memory that was refused, with the line that made it.
struct Refusal {
    std::uint64_t count = 0;  // of all refused requests
    std::uint64_t bytes = 0;
    std::string file, function;
    std::uint32_t line = 0;
};

// The function that a comprehension stands in; any other name as it is.
std::string_view function_around(std::string_view name) noexcept;

}  // namespace hiwater
