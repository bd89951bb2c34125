#include "heap/chunk_headers.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>

#include "base/pages.h"
#include "base/raw_calls.h"

namespace hiwater::chunk_headers {

namespace {

using Word = std::uintptr_t;

constexpr Word kFlags = 7, kPreviousInUse = 1, kIsMapped = 2;
constexpr std::size_t kAtOnce = 512;
constexpr std::size_t kLargestCached = 1040, kMostCached = 16;  // of a chunk; in a thread's cache, of one size

// Reads `kWords` words at each of up to kAtOnce addresses, by the kernel, to which an address that is not mapped is an
// error. False where such reading is not allowed.
template <std::size_t kWords>
bool read_each(const Word* addresses, std::size_t count, Word (*words)[kWords], bool* is_read) noexcept {
    constexpr std::size_t kEach = kWords * sizeof(Word);
    iovec there[kAtOnce];
    for (std::size_t i = 0; i < count; ++i) there[i] = {reinterpret_cast<void*>(addresses[i]), kEach};
    for (std::size_t at = 0; at < count; ++at) {
        const ssize_t n = raw::read_own(words[at], (count - at) * kEach, there + at, count - at);
        if (n < 0 && errno != EFAULT) return false;
        const std::size_t whole = n < 0 ? 0 : static_cast<std::size_t>(n) / kEach;
        std::fill(is_read + at, is_read + at + whole, true);
        at += whole;
        if (at < count) is_read[at] = false;
    }
    return true;
}

bool is_mapped(Word address) noexcept {
    unsigned char in_core = 0;
    return raw::mincore(reinterpret_cast<void*>(address & ~(kPage - 1)), kPage, &in_core) == 0 || errno != ENOMEM;
}

// Whether a new block has the header that a live block is expected to have.
bool has_known_header(std::size_t bytes) noexcept {
    constexpr Word kMostUnused = 16;  // too little behind a block for a block of its own
    void* volatile block = ::malloc(bytes);
    const Word address = reinterpret_cast<Word>(block), before = address - sizeof(Word);
    Word head[1][1], behind[1][1];
    bool is_read = false, is_known = false;
    if (block != nullptr && read_each(&before, 1, head, &is_read) && is_read) {
        const Word size = head[0][0] & ~kFlags, after = before + size;
        is_known = (head[0][0] & kIsMapped) == 0 && size >= bytes + sizeof(Word) &&
                   size <= bytes + sizeof(Word) + kMostUnused && read_each(&after, 1, behind, &is_read) && is_read &&
                   (behind[0][0] & kPreviousInUse) != 0;
    }
    ::free(block);
    return is_known;
}

// The word that glibc writes into each block of a thread's cache; 0 where it cannot be found.
Word cache_key() noexcept {
    Word keys[2] = {};
    const std::size_t sizes[] = {24, 200};
    for (int i = 0; i < 2; ++i) {
        void* volatile block = ::malloc(sizes[i]);
        const Word at = reinterpret_cast<Word>(block) + sizeof(Word);
        Word words[1][1];
        bool is_read = false;
        ::free(block);
        if (read_each(&at, 1, words, &is_read) && is_read) keys[i] = words[0][0];
    }
    return keys[0] == keys[1] ? keys[0] : 0;
}

// Reads the header of each block, and that of the block behind it, unless that is the next one.
bool read_headers(Block* blocks, std::size_t count, Word cached) noexcept {
    Word at[kAtOnce], heads[kAtOnce][3], behind[kAtOnce][1];
    bool is_read[kAtOnce] = {};
    for (std::size_t i = 0; i < count; ++i) at[i] = blocks[i].address - sizeof(Word);
    if (!read_each(at, count, heads, is_read)) return false;
    std::size_t next[kAtOnce], chunks = 0;
    for (std::size_t i = 0; i < count; ++i) {
        Block& block = blocks[i];
        const Word head = heads[i][0], size = head & ~kFlags;
        block.is_freed = is_read[i] ? size < block.bytes : !is_mapped(at[i]);
        if (block.is_freed || !is_read[i] || (head & kIsMapped) != 0) continue;
        block.chunk_bytes = size;
        block.may_wait = cached != 0 && size <= kLargestCached && heads[i][2] == cached;
        if (i + 1 < count && is_read[i + 1] && blocks[i + 1].address == block.address + size) {  // most are neighbours
            block.is_freed = (heads[i + 1][0] & kPreviousInUse) == 0;
            continue;
        }
        next[chunks] = i;
        at[chunks++] = block.address + size - sizeof(Word);
    }
    if (!read_each(at, chunks, behind, is_read)) return false;
    for (std::size_t i = 0; i < chunks; ++i)
        if (is_read[i] && (behind[i][0] & kPreviousInUse) == 0) blocks[next[i]].is_freed = true;
    return true;
}

// For blocks of one size that contain the cache's key. The key may be left over from another block, but a block that
// malloc returns now was free.
void ask_malloc(Block** blocks, std::size_t count) noexcept {
    void* given[kMostCached];
    std::size_t taken = 0, found = 0;
    while (taken < kMostCached && found < count) {
        void* block = ::malloc(blocks[0]->chunk_bytes - sizeof(Word));
        if (block == nullptr) break;
        given[taken++] = block;
        for (std::size_t i = 0; i < count; ++i) {
            if (blocks[i]->address != reinterpret_cast<Word>(block)) continue;
            blocks[i]->is_freed = true;
            ++found;
        }
    }
    while (taken != 0) ::free(given[--taken]);
}

}  // namespace

void find_freed(Block* blocks, std::size_t count) noexcept {
    constexpr std::size_t kMostWaiting = 256;
    if (!has_known_header(24) || !has_known_header(1000) || !has_known_header(5000)) return;
    const Word cached = cache_key();
    for (std::size_t at = 0; at < count; at += kAtOnce)
        if (!read_headers(blocks + at, std::min(kAtOnce, count - at), cached)) return;
    Block* waiting[kMostWaiting];
    std::size_t number = 0;
    for (std::size_t i = 0; i < count && number < kMostWaiting; ++i)
        if (blocks[i].may_wait && !blocks[i].is_freed) waiting[number++] = &blocks[i];
    std::sort(waiting, waiting + number,
              [](const Block* a, const Block* b) { return a->chunk_bytes < b->chunk_bytes; });
    for (std::size_t i = 0, end = 0; i < number; i = end) {
        while (end < number && waiting[end]->chunk_bytes == waiting[i]->chunk_bytes) ++end;
        ask_malloc(waiting + i, end - i);
    }
}

}  // namespace hiwater::chunk_headers
