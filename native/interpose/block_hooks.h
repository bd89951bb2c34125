// What a hook does with a call of an allocator's entry, for all entries but the most frequent ones of the C library
// (hooks.cpp) and of Python (python_hooks.cpp): it takes what the call will free out of the tables, makes the call, and
// records the block that it returned.
#pragma once

#include <errno.h>

#include <cstddef>
#include <cstdint>
#include <new>

#include "heap/fast_path.h"

namespace hiwater::interpose {

// What an entry does, and which of its arguments are the size. Every argument and result is a machine word.
enum class Does {
    allocate_first,    // f(bytes, …)
    allocate_second,   // f(…, bytes)
    allocate_product,  // f(count, bytes of each, …)
    fill_pointer,      // f(where to, alignment, bytes) is 0 or an errno value
    resize,            // f(block, bytes, …)
    resize_product,    // f(block, count, bytes of each, …)
    resize_or_free,    // f(block, bytes): frees the block where it fails
    grow_in_place,     // f(block, bytes, more, flags) is the size that the block has now
    release,           // f(block, …)
    // As allocate_first, but with an exception for a refusal; the second with an alignment as its second argument.
    allocate_or_throw,
    allocate_aligned_or_throw,
};

using Word = std::uintptr_t;
using Function = Word (*)(Word, Word, Word, Word);
constexpr bool resizes(Does does) {
    return does == Does::resize || does == Does::resize_product || does == Does::resize_or_free;
}

constexpr bool throws(Does does) { return does == Does::allocate_or_throw || does == Does::allocate_aligned_or_throw; }

template <Does kDoes>
Word wanted_bytes(Word a, Word b, Word c) noexcept {
    if constexpr (kDoes == Does::allocate_first || throws(kDoes)) return a;
    if constexpr (kDoes == Does::allocate_product) return product(a, b);
    if constexpr (kDoes == Does::fill_pointer) return c;
    if constexpr (kDoes == Does::resize_product) return product(b, c);
    return b;
}

inline void* key_of(Word block) noexcept { return reinterpret_cast<void*>(LiveTable::key_of(block)); }

inline void note_block(Word block, Word bytes) noexcept {
    recorder().on_alloc<capture::Kind::native>(key_of(block), bytes);
}

// What the allocator calls meanwhile is not the program's.
inline Word covered(Function real, Word a, Word b, Word c, Word d) {
    Covered covered;
    return real(a, b, c, d);
}

template <Does kDoes>
Word allocated(Function real, Word a, Word b, Word c, Word d) {
    const Word bytes = wanted_bytes<kDoes>(a, b, c);
    const Word result = covered(real, a, b, c, d);
    const bool fills = kDoes == Does::fill_pointer;
    const bool failed = fills ? static_cast<int>(result) != 0 : result == 0;
    if (!failed) {
        note_block(fills ? *reinterpret_cast<Word*>(a) : result, bytes);
    } else if (bytes != 0 && (!fills || static_cast<int>(result) == ENOMEM)) {
        recorder().on_refused(bytes);
    }
    return result;
}

// An exception must not meet anything of ours that has to be undone: the libgcc linked into this module cannot take
// part in another's unwinding. So the sister that returns null goes first, and the entry itself, uncovered, only to
// fail as it does.
template <Does kDoes>
Word allocated_or_thrown(Function real, Function sister, Word a, Word b, Word c, Word d) {
    static const std::nothrow_t nothrow;
    const auto tag = reinterpret_cast<Word>(&nothrow);
    const Word bytes = wanted_bytes<kDoes>(a, b, c);
    Word block = sister == nullptr ? 0 : covered(sister, a, kDoes == Does::allocate_aligned_or_throw ? b : tag, tag, 0);
    if (block == 0) {
        if (sister != nullptr) recorder().on_refused(bytes);
        block = real(a, b, c, d);
    }
    note_block(block, bytes);
    return block;
}

template <Does kDoes>
Word resized(Function real, Word old, Word b, Word c, Word d) {
    const Word bytes = wanted_bytes<kDoes>(old, b, c);
    const Block taken = recorder().take(key_of(old));
    const Word block = covered(real, old, b, c, d);
    if (block != 0) {
        note_block(block, bytes);
    } else if (bytes != 0) {
        // A size of 0 frees and gives null; any other null left the old block as it was.
        if (old != 0 && kDoes != Does::resize_or_free) recorder().put_back(key_of(old), taken);
        recorder().on_refused(bytes);
    }
    return block;
}

inline Word grown(Function real, Word block, Word bytes, Word more, Word flags) {
    const Block taken = recorder().take(key_of(block));
    const Word size = covered(real, block, bytes, more, flags);
    if (taken.account == 0) return size;
    if (size < bytes) {
        recorder().put_back(key_of(block), taken);
    } else {
        note_block(block, size - bytes < more ? size : bytes + more);
    }
    return size;
}

// `sister` is null for entries that do not throw.
template <Does kDoes>
Word call_recorded(Function real, Function sister, Word a, Word b, Word c, Word d) {
    if constexpr (kDoes == Does::release) {
        if (recording() && a != 0) recorder().on_free(key_of(a));
        return real(a, b, c, d);
    } else {
        if (!watching()) return real(a, b, c, d);
        if constexpr (kDoes == Does::grow_in_place) return grown(real, a, b, c, d);
        if constexpr (resizes(kDoes)) return resized<kDoes>(real, a, b, c, d);
        if constexpr (throws(kDoes)) return allocated_or_thrown<kDoes>(real, sister, a, b, c, d);
        return allocated<kDoes>(real, a, b, c, d);
    }
}

}  // namespace hiwater::interpose
