// Heap counters of one thread.
#pragma once

#include <cstdint>

#include "base/static_tls.h"

namespace hiwater {

// What this thread allocated and freed while the heap's meters were open. Readers take differences. Live bytes are
// negative in a thread that frees blocks of other threads. A reader that resets peak_bytes later restores the higher of
// both values: see lines/line_recorder.h.
struct ThreadHeap {
    std::int64_t live_bytes;
    std::int64_t peak_bytes;  // highest live_bytes since the last reset
    std::int64_t allocated_bytes;
    std::int64_t
        scope_peak_bytes;  // highest live_bytes since read_and_reset_peak(): scopes have a peak apart from the lines'
    std::int64_t allocations;

    void change(std::int64_t bytes) noexcept {
        live_bytes += bytes;
        if (bytes > 0) allocated_bytes += bytes;
        if (live_bytes > peak_bytes) peak_bytes = live_bytes;
        if (live_bytes > scope_peak_bytes) scope_peak_bytes = live_bytes;
    }

    // The highest live_bytes since the last call, for scopes. The next interval begins now.
    std::int64_t read_and_reset_peak() noexcept {
        const std::int64_t highest = scope_peak_bytes;
        scope_peak_bytes = live_bytes;
        return highest;
    }
};

HIWATER_STATIC_TLS inline constinit thread_local ThreadHeap thread_heap = {};

}  // namespace hiwater
