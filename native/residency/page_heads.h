// The first bytes of pages, as allocators wrote them: read in batches, and without harm where memory goes away
// meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "residency/page_flags.h"
#include "base/uncopied.h"

namespace hiwater::residency {

inline constexpr std::size_t kHeadBytes = 144;
inline constexpr std::uintptr_t kPoolBytes = 16 * 1024;  // of Python's object allocator, since CPython 3.10

class PageHeads : Uncopied {
public:
    explicit PageHeads(PageFlags& pages) : pages_(pages) {}

    // Whether the system allows it: a sandbox may not.
    static bool works() noexcept;
    // The head of a page that is in RAM, kHeadBytes of it; null where it can be read no more. Good until the next call.
    // Pages that begin a pool are read together with those of the pools behind them, others with the next pages, up to
    // `end`.
    const unsigned char* at(std::uintptr_t page, std::uintptr_t end) noexcept;

private:
    void read_from(std::uintptr_t page, std::uintptr_t end) noexcept;

    static constexpr std::size_t kBatch = 64;
    PageFlags& pages_;
    std::size_t count_ = 0, next_ = 0;  // heads that were read; usually the next one to return
    std::size_t most_ = 0;              // were to be read at once
    std::uintptr_t distance_ = 0;       // from one to the next
    std::uintptr_t addresses_[kBatch];
    unsigned char heads_[kBatch][kHeadBytes];
};

}  // namespace hiwater::residency
