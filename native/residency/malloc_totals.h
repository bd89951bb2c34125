// The C library's figures of its heaps. mallinfo2() takes malloc's locks. A child that is forked during the call has
// locks that nobody releases, and hangs in its next malloc(). Therefore a fork waits until no call is running, and a
// call waits until no fork is running.
#pragma once

#include <cstdint>

namespace hiwater::residency {

struct MallocTotals {
    bool are_known = false;         // not by musl, and glibc before 2.33
    std::int64_t in_use_bytes = 0;  // of the blocks inside malloc's heaps
    std::int64_t mapped_bytes = 0;  // of the blocks that it mapped for themselves
};

// Looks up mallinfo2(), which takes the loader's lock: to be called before any thread of hiwater's starts.
void prepare_malloc_totals() noexcept;
// Zeros where another malloc is in use. Not known after stop_malloc_totals().
MallocTotals malloc_totals() noexcept;

// Around everything that makes a child in a copy of this process's memory. Both waits have a time limit: a signal
// handler may fork inside the malloc() whose lock the call waits for.
void hold_malloc_totals_for_fork() noexcept;
void release_malloc_totals_after_fork() noexcept;
void forget_malloc_totals_in_child() noexcept;

// Around what takes from this thread the right to wait for malloc's locks. It cannot resume afterwards: that is for the
// case that nothing was taken.
void stop_malloc_totals() noexcept;
void resume_malloc_totals() noexcept;

}  // namespace hiwater::residency
