// The C library's own account of its heaps. Asking for it takes malloc's locks, and a child that is forked meanwhile would have them held
// for ever: so whoever forks waits until nobody asks, and who wants to ask waits until nobody forks.
#pragma once

#include <cstdint>

namespace hiwater::residency {

struct MallocTotals {
    std::int64_t in_use_bytes = 0;  // of the blocks inside malloc's heaps
    std::int64_t mapped_bytes = 0;  // of the blocks that it mapped for themselves
};

// Before any of our threads is there: finds the function, which takes the loader's lock.
void prepare_malloc_totals() noexcept;
// Zeros where another malloc is in use.
MallocTotals malloc_totals() noexcept;

// Around everything that makes a child in a copy of this process's memory. Nothing waits for long: a signal handler may fork amid the very
// malloc that who asks is waiting for.
void hold_malloc_totals_for_fork() noexcept;
void release_malloc_totals_after_fork() noexcept;
void forget_malloc_totals_in_child() noexcept;

}  // namespace hiwater::residency
