// Where resident memory is: what Python, malloc and mappings hold of it, and what nobody can name.
//
// Every page that smaps counts goes into one part, so the parts add up to resident memory; what differs, and what lies
// beside an allocator's memory and cannot be recognised, is "unexplained". What a page contains is read from what
// allocators wrote at its beginnings, and only of pages that are in RAM: a snapshot must not touch what the program did
// not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "residency/areas.h"
#include "residency/page_heads.h"

namespace hiwater::residency {

enum class Part : std::uint8_t {
    python_live,
    python_slack,
    malloc_live,
    malloc_slack,
    anonymous,
    files,
    shared,
    stacks,
    overhead,
    unexplained,
    count_
};
inline constexpr std::size_t kParts = static_cast<std::size_t>(Part::count_);
const char* name_of(Part part) noexcept;

struct Row {
    std::int64_t resident_bytes = 0;
    std::int64_t untouched_bytes = 0;  // address space of it that has never been written: allocated, not resident
};

// One large block of malloc's, or one large mapping, anonymous or of shared memory.
struct LargeBlock {
    bool from_malloc;
    std::uintptr_t address;  // of the mapping
    std::uintptr_t block;    // what the program was given; of a mapping, its beginning
    std::int64_t bytes, touched_bytes;
};

struct Breakdown {
    std::int64_t resident_bytes = 0;
    Row rows[kParts];
    PageVector<LargeBlock> large;      // largest first
    bool is_unreadable = false;        // our memory cannot be read: allocators' large blocks are under anonymous maps
    bool page_limit_reached = false;   // too many pages to read: the rest is under anonymous maps
    bool is_malloc_unknown = false;    // it gives no figures: what is free in its heaps counts as in use
    std::int64_t not_found_bytes = 0;  // of malloc's large blocks, by its own count

    Row& operator[](Part part) { return rows[static_cast<std::size_t>(part)]; }
};

// Some milliseconds, more in a large process. False where the kernel shows no smaps, or there is no memory for it.
// `mappings`: what the program is known to have mapped; each is told from its neighbours.
bool take_snapshot(Breakdown* out, Ranges* mappings = nullptr) noexcept;

// Bytes in RAM of [address, address + bytes), in whole pages at its ends but never more than `bytes`.
std::int64_t touched_bytes(std::uintptr_t address, std::uint64_t bytes) noexcept;

// What the first bytes of a page mean. `head` has kHeadBytes.
struct Chunk {
    std::uint64_t bytes = 0;   // of the whole mapping; 0: malloc did not map this for one block
    std::uint64_t offset = 0;  // of the block in it
};
// `room`: bytes from the page to the end of its area.
Chunk chunk_of(const unsigned char* head, std::uint64_t room) noexcept;
// Live bytes of a pool of Python's object allocator, or -1 where `head` begins none.
std::int64_t pool_live_bytes(const unsigned char* head) noexcept;

}  // namespace hiwater::residency
