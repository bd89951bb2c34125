// A thread of hiwater in the program: it needs no GIL and takes no signal, and when it has ended, the kernel no longer
// counts it. Only one caller may begin or end it at a time. In the engine, begin and end it in a BusyGuard, and let the
// work begin with one: what it does does not count as the program's.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hiwater {

class OwnThread {
public:
    // `name` is what the kernel shows for it, 15 characters. False where no thread can be had.
    bool begin(const char* name, void (*work)(), std::size_t stack_bytes = 128 * 1024) noexcept;
    void end() noexcept;
    bool is_running() const noexcept { return is_running_; }
    void forget_in_child() noexcept { is_running_ = false; }  // no thread but its own comes through a fork

    // Ends a sleep of the work early. Where the work is about to sleep, it may miss this. Any thread, any time.
    void wake() noexcept;
    // For the work: sleeps that long, and returns whether to continue.
    bool goes_on_after(std::uint64_t ns) noexcept;

private:
    static void* run(void* self);

    pthread_t thread_{};
    const char* name_ = nullptr;
    void (*work_)() = nullptr;
    bool is_running_ = false;
    std::atomic<std::uint32_t> is_to_end_{0};
    std::atomic<std::int32_t> id_{0};
};

}  // namespace hiwater
