#include "base/own_thread.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "base/raw_calls.h"
#include "base/signals_blocked.h"
#include "base/uncancelled.h"

namespace hiwater {

void* OwnThread::run(void* self) {
    OwnThread& own = *static_cast<OwnThread*>(self);
    own.id_.store(platform::thread_number(), std::memory_order_release);
    platform::name_own_thread(own.name_);
    own.work_();
    return nullptr;
}

bool OwnThread::begin(const char* name, void (*work)(), std::size_t stack_bytes) noexcept {
    name_ = name;
    work_ = work;
    id_.store(0, std::memory_order_relaxed);
    is_to_end_.store(0, std::memory_order_relaxed);
    const SignalsBlocked blocked(SignalsBlocked::But::none);  // so will the thread have them
    pthread_attr_t small;
    ::pthread_attr_init(&small);
    ::pthread_attr_setstacksize(&small, stack_bytes);
    // A program's thread-local variables lie in the same piece of memory: with many of them a small one has no room for
    // a stack.
    is_running_ =
        ::pthread_create(&thread_, &small, run, this) == 0 || ::pthread_create(&thread_, nullptr, run, this) == 0;
    ::pthread_attr_destroy(&small);
    return is_running_;
}

void OwnThread::end() noexcept {
    if (!is_running_) return;
    is_to_end_.store(1, std::memory_order_release);
    wake();
    Uncancelled whole;
    ::pthread_join(thread_, nullptr);
    is_running_ = false;
    // Joined, the kernel may still count it for a moment, and CPython warns who forks with a second thread.
    const std::int32_t id = id_.load(std::memory_order_acquire);
    for (int i = 0; i < 2000 && id != 0 && platform::is_thread_left(id); ++i) ::sched_yield();
}

void OwnThread::wake() noexcept { platform::wake(&is_to_end_, 1); }

bool OwnThread::goes_on_after(std::uint64_t ns) noexcept {
    const timespec left{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    if (is_to_end_.load(std::memory_order_acquire) == 0) platform::wait_while(&is_to_end_, 0, &left);
    return is_to_end_.load(std::memory_order_acquire) == 0;
}

}  // namespace hiwater
