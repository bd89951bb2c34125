// A function that the interpreter's main thread calls between two instructions of the program, because the sampler's
// thread, which has no GIL, or the hook of a function requests it. A main thread that is in one long call comes to it
// afterwards.
#pragma once

#include <atomic>

#include "base/uncopied.h"

namespace hiwater {

class MainThreadCall : Uncopied {
public:
    using Function = int (*)();
    // For objects that are never destroyed.
    explicit MainThreadCall(Function function) noexcept;

    // From the sampler's thread, as often as it likes.
    void request() noexcept;
    // From a thread of the program during an event: makes the requests that the sampler could not make.
    static void add_due() noexcept;
    // From a thread of the program that has the GIL and is in no event.
    void request_with_gil() noexcept;
    void begin() noexcept { is_requested_.store(false, std::memory_order_release); }

    // Around what takes from the calling thread the right to make system calls, as such a function does.
    static void stop_on_main_thread() noexcept;
    static void resume() noexcept { is_stopped_.store(false, std::memory_order_relaxed); }

private:
    static int run(void* call);
    void add() noexcept;

    static MainThreadCall* first_;  // of all calls
    static std::atomic<bool> is_stopped_;
    MainThreadCall* const next_;
    const Function function_;
    std::atomic<bool> is_requested_{false};  // and not begun yet
    std::atomic<bool> is_due_{false};        // add_due() is to add it
};

}  // namespace hiwater
