// Hooks of allocators other than the C library's: jemalloc, mimalloc, tcmalloc and their like.
//
// Such a library gives out blocks by more entries than malloc: C++'s operator new and delete, mallocx, mi_malloc,
// tc_malloc. Several may be in one process (one preloaded, another that an extension is linked against), so each has
// hooks of its own, which call its own functions. While one of these works, its own calls of mmap, sbrk or another
// allocator are not the program's: `tls.covered`.
#pragma once

#include <vector>

#include "interpose/modules.h"
#include "interpose/slots.h"

namespace hiwater::interpose {

inline constexpr int kMostAllocators = 3;  // there is a copy of each hook for each of them

// Appends a hook for each entry that the module itself defines. The hooks of this number call this module's functions
// from now on.
void add_allocator_hooks(int number, const Module& module, std::vector<Hook>* hooks);

}  // namespace hiwater::interpose
