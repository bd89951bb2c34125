// Each thread's own share of the heap's figures.
#pragma once

#include <cstdint>

namespace hiwater {

// What this thread allocated and freed while the heap's meters were open: readers take differences. Live bytes go below zero in a
// thread that frees what others made. Whoever lowers the mark puts the higher of the two back: see lines/line_recorder.h.
struct ThreadHeap {
    std::int64_t live_bytes;
    std::int64_t mark_bytes;  // highest live_bytes since the mark was lowered
    std::int64_t allocated_bytes;
    std::int64_t scope_mark_bytes;  // highest live_bytes since fold(): scopes have a mark of their own beside the lines'

    void change(std::int64_t bytes) noexcept {
        live_bytes += bytes;
        if (bytes > 0) allocated_bytes += bytes;
        if (live_bytes > mark_bytes) mark_bytes = live_bytes;
        if (live_bytes > scope_mark_bytes) scope_mark_bytes = live_bytes;
    }

    // The highest live_bytes since the last fold; then the mark starts anew.
    std::int64_t fold() noexcept {
        const std::int64_t highest = scope_mark_bytes;
        scope_mark_bytes = live_bytes;
        return highest;
    }
};

// Static TLS, of which a dlopened library may use little.
inline constinit thread_local ThreadHeap thread_heap __attribute__((tls_model("initial-exec"))) = {};

}  // namespace hiwater
