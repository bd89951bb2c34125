// A few mappings of one size that nobody uses now, for who needs one next. Threads that come and go would each map and
// unmap theirs, and what is unmapped stops the process's other threads for a moment.
#pragma once

#include <atomic>

#include "base/uncopied.h"

namespace hiwater {

// Takes no lock, so that any thread may come at any moment. A constant at the start of the process.
class KeptMappings : Uncopied {
public:
    // Null where there is none.
    void* take() noexcept {
        for (std::atomic<void*>& place : places_)
            if (place.load(std::memory_order_relaxed) != nullptr)
                if (void* const mapping = place.exchange(nullptr, std::memory_order_acquire)) return mapping;
        return nullptr;
    }
    // False where there are enough: then the caller unmaps it.
    bool keep(void* mapping) noexcept {
        for (std::atomic<void*>& place : places_) {
            void* none = nullptr;
            if (place.compare_exchange_strong(none, mapping, std::memory_order_release, std::memory_order_relaxed))
                return true;
        }
        return false;
    }

private:
    std::atomic<void*> places_[8] = {};
};

}  // namespace hiwater
