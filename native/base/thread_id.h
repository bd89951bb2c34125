// A thread by the number that the C library and Python have for it: pthread_self(), which is a pointer on some systems.
#pragma once

#include <pthread.h>

#include <cstdint>

namespace hiwater {

using ThreadId = std::uintptr_t;  // 0: none

inline ThreadId own_thread_id() noexcept { return (ThreadId)::pthread_self(); }  // of either kind

}  // namespace hiwater
