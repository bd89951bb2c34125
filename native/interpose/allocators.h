// Which loaded modules are allocators, beside the C library: preloaded, linked against, or part of the program itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "interpose/slots.h"

namespace hiwater::interpose {

// Looks for allocators among the modules loaded now, and appends the hooks of all that are known. A module without a
// GNU hash table is not recognised, nor is one beyond kMostAllocators.
void find_allocators(std::vector<Hook>* hooks);

// Whether the module at this address is a library that is an allocator and nothing else: what it maps is its arenas.
bool is_allocator_library(std::uintptr_t base) noexcept;

// Whether malloc is one of those found, and not the C library's.
bool is_malloc_replaced() noexcept;

// The allocators found, in words for the report, the one that malloc belongs to first; empty where the C library's is
// the only one.
std::string allocators_in_words();

}  // namespace hiwater::interpose
