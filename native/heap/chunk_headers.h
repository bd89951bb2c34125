// The headers that the C library's malloc writes beside its blocks: which of the blocks that count as live are free.
//
// A block can be freed past every hook: by a pointer in a heap block or in generated code, by __libc_free(). A live
// block is never called free: its size word holds its size, and the word behind it has the bit "previous in use"
// (malloc/malloc.c, "struct malloc_chunk"). Some freed blocks are not found: small ones may wait in lists, and their
// headers then look live.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hiwater::chunk_headers {

struct Block {
    std::uintptr_t address;
    std::uint64_t bytes;  // as requested
    bool is_freed = false;
    std::uint64_t chunk_bytes = 0;  // 0: not known
    bool may_wait = false;          // in the cache of free blocks of a thread
};

// Sets `is_freed` of those that are free for certain. Nothing where malloc is not glibc's, as under valgrind. About
// half a microsecond a block. Allocates a few small blocks and frees them.
void find_freed(Block* blocks, std::size_t count) noexcept;

}  // namespace hiwater::chunk_headers
