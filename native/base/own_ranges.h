// Sets of address ranges: which are the recorder's own, so that whoever explains a process's memory can leave them out
// of the program's, and which are a file's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hiwater {

// What a range holds decides what the child of a fork does with it. `shared`: the capture, which is the parent's.
// `tables`: what is only read and written under the recorder's lock; the child forgets it. `kept`: what hooks look at
// without the lock, and what is another's. `wiped`: the same, and the child finds zeros there, so that it shares none
// of the parent's pages.
enum class Use : std::uint8_t { kept, wiped, tables, shared };

// A fixed table without a lock: pages are mapped and given back under several locks, and in the child of a fork. Ranges
// beyond its room are not known; the recorder needs a few dozen, and one more for each 64 MiB of address space that
// holds blocks. A range is in the table only while it is mapped, so that the child of a fork may unmap what it finds
// here: other threads of the parent may have been anywhere in the recorder.
class OwnRanges {
public:
    static constexpr std::size_t kMost = 4096;
    struct Range {
        std::uintptr_t start, end;
        Use use = Use::kept;
    };

    void add(const void* start, std::size_t bytes, Use use = Use::kept) noexcept {
        for (std::size_t i = 0; i < kMost; ++i) {
            std::uintptr_t none = 0;
            Slot& slot = slots_[i];
            if (slot.start.load(std::memory_order_relaxed) != 0 ||
                !slot.start.compare_exchange_strong(none, kTaken, std::memory_order_acquire))
                continue;
            slot.bytes.store(bytes, std::memory_order_relaxed);
            slot.use.store(use, std::memory_order_relaxed);
            slot.start.store(reinterpret_cast<std::uintptr_t>(start), std::memory_order_release);
            raise_used(i + 1);
            return;
        }
    }

    void remove(const void* start) noexcept {
        const std::size_t used = used_.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < used; ++i) {
            std::uintptr_t found = reinterpret_cast<std::uintptr_t>(start);
            if (slots_[i].start.compare_exchange_strong(found, 0, std::memory_order_release, std::memory_order_relaxed))
                return;
        }
    }

    // Calls visit(range) for each.
    template <typename Visit>
    void each(Visit visit) const {
        const std::size_t used = used_.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < used; ++i) {
            const std::uintptr_t start = slots_[i].start.load(std::memory_order_acquire);
            if (start <= kTaken) continue;
            visit(Range{start, start + slots_[i].bytes.load(std::memory_order_relaxed),
                        slots_[i].use.load(std::memory_order_relaxed)});
        }
    }

private:
    static constexpr std::uintptr_t kTaken = 1;  // being filled in
    struct Slot {
        std::atomic<std::uintptr_t> start;
        std::atomic<std::size_t> bytes;
        std::atomic<Use> use;
    };

    void raise_used(std::size_t to) noexcept {
        std::size_t used = used_.load(std::memory_order_relaxed);
        while (used < to && !used_.compare_exchange_weak(used, to, std::memory_order_release)) {
        }
    }

    Slot slots_[kMost] = {};
    std::atomic<std::size_t> used_{0};
};

inline constinit OwnRanges own_ranges;

}  // namespace hiwater
