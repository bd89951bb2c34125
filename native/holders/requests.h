// Searches for holders that another process asks for, by a number in the capture's header: `hiwater holders PID`.
#pragma once

namespace hiwater::holder_requests {

// From the sampler's thread, at each of its ticks: has the main thread begin a search that was asked for, and keeps
// what one has found.
void consider() noexcept;
// Once the sampler's thread has ended for good: a search that goes on is ended. In a forked child, it is forgotten.
void abandon() noexcept;
void forget_in_child() noexcept;

}  // namespace hiwater::holder_requests
