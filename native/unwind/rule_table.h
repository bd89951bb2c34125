// Rules by return address. Only grows, until a library is unloaded: then it is empty again. Under the recorder's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/pages.h"
#include "unwind/rule.h"

namespace hiwater::unwind {

class RuleTable {
public:
    // Null for an address that was not met.
    const Rule* find(std::uintptr_t address) const noexcept {
        const Slot& slot = *place_of(address);
        return slot.address != 0 ? &slot.rule : nullptr;
    }
    void put(std::uintptr_t address, const Rule& rule) {
        if ((count_ + 1) * 4 > slots_.size() * 3) grow();
        *place_of(address) = {address, rule};
        ++count_;
    }
    std::size_t size() const noexcept { return count_; }
    void forget() noexcept {
        slots_.reset();
        first_ = none_;
        shift_ = 63;
        count_ = 0;
    }

private:
    static constexpr std::size_t kFirst = 4096;
    struct Slot {
        std::uintptr_t address;
        Rule rule;
    };

    Slot* place_of(std::uintptr_t address) const noexcept {
        std::size_t i = address * 0x9e3779b97f4a7c15ULL >> shift_;
        while (first_[i].address != address && first_[i].address != 0) i = (i + 1) & (slots_.size() - 1);
        return first_ + i;
    }
    void grow() {
        PageVector<Slot> old;
        old.resize(slots_.size() == 0 ? kFirst : 2 * slots_.size());
        old.swap(slots_);
        shift_ = 64 - __builtin_ctzll(slots_.size());
        first_ = slots_.data();
        for (const Slot& slot : old)
            if (slot.address != 0) *place_of(slot.address) = slot;
    }

    PageVector<Slot> slots_;  // a power of two
    Slot none_[2] = {};       // what there is before the first
    Slot* first_ = none_;
    std::size_t count_ = 0;
    int shift_ = 63;
};

}  // namespace hiwater::unwind
