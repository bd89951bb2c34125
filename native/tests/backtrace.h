// The return addresses that the compiler's own unwinder finds, innermost first.
#pragma once

#include <unwind.h>

#include <cstdint>
#include <vector>

namespace hiwater::tests {

// Inlined: the first frame is the caller's own.
[[gnu::always_inline]] inline std::vector<std::uintptr_t> backtrace() {
    std::vector<std::uintptr_t> found;
    found.reserve(8192);
    _Unwind_Backtrace(
        [](_Unwind_Context* context, void* to) {
            static_cast<std::vector<std::uintptr_t>*>(to)->push_back(_Unwind_GetIP(context));
            return _URC_NO_REASON;
        },
        &found);
    return found;
}

}  // namespace hiwater::tests
