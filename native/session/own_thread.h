// A thread of ours in somebody else's program: it needs no GIL and takes no signal, what it does is not the program's, and when it is
// ended the kernel counts it no more. Its callers see to it that one of them begins or ends it at a time.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace hiwater {

class OwnThread {
public:
    // `name` is what the kernel shows for it, 15 characters. False where no thread can be had.
    bool begin(const char* name, void (*work)()) noexcept;
    void end() noexcept;
    bool is_running() const noexcept { return is_running_; }
    void forget_in_child() noexcept { is_running_ = false; }  // no thread but its own comes through a fork

    // For the work: sleeps that long, and says whether to go on.
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
