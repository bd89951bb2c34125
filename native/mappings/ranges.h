// What the hooks of mappings pass to the recorder, and what it returns to them.
#pragma once

#include <cstdint>

#include "capture/format.h"
#include "mappings/mappings.h"

namespace hiwater {

struct NewMapping {
    capture::Kind
        kind;  // of shared memory: `attached` where the object is to be looked up among those that were made here
    std::uint32_t protection;
    const char* label = nullptr;
    SharedObject object = {};  // without a name where nobody else can map it
    std::uint64_t first_page = 0;
};

// The pieces of a range that was taken out of the table of mappings.
struct TakenRange {
    static constexpr int kMost = 64;
    struct Part {
        std::uintptr_t start, end;
        Piece piece;
    } part[kMost];
    int count = 0;
    std::uint32_t session = 0;  // recording that the accounts belong to
};

}  // namespace hiwater
