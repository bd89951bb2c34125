// Compares a word that other threads may change, as a relaxed load does. A compiler joins no atomic load with the
// comparison behind it, which costs an instruction and a register each time: hooks compare many such words.
#pragma once

#include <atomic>
#include <cstddef>
#include <type_traits>

#if defined(__x86_64__) && defined(__GCC_ASM_FLAG_OUTPUTS__) && !defined(__SANITIZE_THREAD__)
#define HIWATER_COMPARES_IN_MEMORY
#endif

namespace hiwater {

// The compiler moves no access to memory over it.
template <typename T>
[[gnu::always_inline]] inline bool holds(const T& word, std::type_identity_t<T> value) noexcept {
    static_assert(std::is_trivially_copyable_v<T>);
#if defined(HIWATER_COMPARES_IN_MEMORY)
    bool is_equal;
    if constexpr (sizeof(T) == 8) {
        asm volatile("cmpq %2, %1" : "=@cce"(is_equal) : "m"(word), "re"(value) : "memory");
    } else if constexpr (sizeof(T) == 4) {
        asm volatile("cmpl %2, %1" : "=@cce"(is_equal) : "m"(word), "ri"(value) : "memory");
    } else {
        static_assert(sizeof(T) == 1);
        asm volatile("cmpb %2, %1" : "=@cce"(is_equal) : "m"(word), "qi"(value) : "memory");
    }
    return is_equal;
#else
    T now;
    __atomic_load(&word, &now, __ATOMIC_ACQUIRE);
    return now == value;
#endif
}
template <typename T>
[[gnu::always_inline]] inline bool holds(const std::atomic<T>& word, std::type_identity_t<T> value) noexcept {
    static_assert(sizeof word == sizeof(T));
    return holds(reinterpret_cast<const T&>(word), value);
}

// Whether the word is above the value.
[[gnu::always_inline]] inline bool is_above(const std::atomic<std::size_t>& word, std::size_t value) noexcept {
#if defined(HIWATER_COMPARES_IN_MEMORY)
    bool is_above;
    asm volatile("cmpq %2, %1" : "=@cca"(is_above) : "m"(word), "re"(value) : "memory");
    return is_above;
#else
    return word.load(std::memory_order_relaxed) > value;
#endif
}

}  // namespace hiwater
