// Notices that the program has loaded a library of accelerators, so that no Python of ours runs as long as there is
// none.
#pragma once

#include <cstdint>

namespace hiwater::device_watch {

// As in src/hiwater/meters/__init__.py.
inline constexpr const char* kLibraries[] = {"torch", "jax"};

// The caller holds the GIL. `callback` is called, on the main thread, once one of the libraries is in `sys.modules`,
// until it returns true; after None it is called again sooner than after false. A callback of None ends that.
void set_callback(void* callback) noexcept;
// From the sampler's thread, which has no GIL: now and then requests a call on the main thread.
void request_if_due(std::uint64_t now_ns) noexcept;

}  // namespace hiwater::device_watch
