// A hash set of record numbers. The records lie elsewhere (in the capture); the set holds 8 bytes for each, the number
// and half of its hash, and asks its owner for equality only where the halves agree: a search seldom touches a record
// that it does not want, and the set grows without touching any. Number 0 is never in a set.
#pragma once

#include <cstdint>

#include "base/open_table.h"

namespace hiwater {

class IdSet {
    struct Slot {
        std::uint32_t id, half;
        bool is_free() const { return id == 0; }
        std::uint64_t hash() const { return half; }
    };

public:
    // The number of the record for which same(number) holds, or 0.
    template <typename Same>
    std::uint32_t find(std::uint64_t hash, Same same) const {
        const auto half = static_cast<std::uint32_t>(hash);
        const Slot* found = slots_.find(hash, [&](const Slot& slot) { return slot.half == half && same(slot.id); });
        return found == nullptr ? 0 : found->id;
    }
    // Adds a number that is not in the set.
    void add(std::uint32_t id, std::uint64_t hash) {
        slots_.put({id, static_cast<std::uint32_t>(hash)}, [](const Slot&) { return false; });
    }
    // Takes out a number that is in the set, with the hash that it was added with.
    void remove(std::uint32_t id, std::uint64_t hash) {
        slots_.remove(hash, [id](const Slot& slot) { return slot.id == id; });
    }

    std::size_t size() const { return slots_.size(); }
    void reset() noexcept { slots_.reset(); }
    std::size_t own_bytes() const { return slots_.own_bytes(); }

private:
    OpenTable<Slot> slots_;
};

}  // namespace hiwater
