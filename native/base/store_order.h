// The order in which others see what one thread stores into shared memory without a lock: a process that reads the
// capture while it is written, or the child of a fork.
#pragma once

#include <atomic>

namespace hiwater {

// Who sees a store from after this sees those from before, too. A kill needs the compiler's order alone: what a process
// has executed is in memory. x86-64 shows stores in that order to everybody; other processors need a barrier between
// them.
[[gnu::always_inline]] inline void order_stores() noexcept {
#if defined(__x86_64__)
    std::atomic_signal_fence(std::memory_order_seq_cst);
#if defined(HIWATER_NOTES_ORDER)  // there is no instruction: tests/store_order_test.cpp finds the place here
    asm volatile("1: .pushsection hiwater_order, \"a?\"\n.balign 4\n.long 1b - .\n.popsection" : : : "memory");
#endif
#elif defined(__aarch64__)
    asm volatile("dmb ishst" : : : "memory");  // between stores alone: a release fence would wait for loads, too
#else
    std::atomic_thread_fence(std::memory_order_release);
#endif
}

// The same before what a later call stores. On x86-64 a compiler that keeps the calls in their order has done all.
[[gnu::always_inline]] inline void order_before_next_event() noexcept {
#if !defined(__x86_64__) || defined(HIWATER_NOTES_ORDER)
    order_stores();
#endif
}

}  // namespace hiwater
