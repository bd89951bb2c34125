// Where on its stack a thread was as it began a piece of work. A jump out of a signal's handler (siglongjmp) may leave
// such a piece for good, and only its place on the stack shows it.
#pragma once

#include <atomic>
#include <cstdint>

namespace hiwater {

// One instruction, as a store of a constant would be.
[[gnu::always_inline]] inline void store_stack_pointer(std::uintptr_t* at) noexcept {
#if defined(__x86_64__)
    asm volatile("movq %%rsp, %0" : "=m"(*at));
#elif defined(__aarch64__)
    asm volatile("mov %0, sp" : "=r"(*at));
#else
    *static_cast<volatile std::uintptr_t*>(at) = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
#endif
}

[[gnu::always_inline]] inline void store_stack_pointer(std::atomic<std::uintptr_t>& at) noexcept {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    static_assert(sizeof at == sizeof(std::uintptr_t));
    store_stack_pointer(reinterpret_cast<std::uintptr_t*>(&at));
#else
    at.store(reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)), std::memory_order_relaxed);
#endif
}

// Whether a jump to where the stack stands at `to` leaves the work that began at `from`. A handler may have a stack of
// its own.
bool is_left_by_jump(std::uintptr_t from, std::uintptr_t to) noexcept;

}  // namespace hiwater
