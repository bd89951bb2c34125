// What Python reports of an accelerator.
#pragma once

#include <cstdint>
#include <string>

namespace hiwater {

struct DeviceFacts {
    std::string name, backend, source;
    std::int64_t limit_bytes = -1;
};

// In bytes; -1: not measured.
struct DeviceFigures {
    std::int64_t allocated = -1, allocated_peak = -1, reserved = -1, reserved_peak = -1, used = -1;
    bool exact = true;
    std::string note;
};

}  // namespace hiwater
