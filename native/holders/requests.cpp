#include "holders/requests.h"

#include <atomic>
#include <memory>
#include <new>

#include "holders/search.h"
#include "session/main_thread_call.h"
#include "session/recorder.h"

namespace hiwater::holder_requests {

namespace {

constexpr std::uint64_t kLongestNs = 120'000'000'000;

// The sampler's thread changes `requested` to nothing and `searching` to `idle`, the main thread `requested` to
// another.
enum class State { idle, requested, searching };
std::atomic<State> g_state{State::idle};
std::uint32_t g_request = 0;
pid_t g_owner = 0;
alignas(holders::Search) char g_room[sizeof(holders::Search)];
holders::Search* g_search = nullptr;

int begin_search();
MainThreadCall g_call{begin_search};

void end_search() noexcept {
    std::destroy_at(g_search);
    g_search = nullptr;
    g_state.store(State::idle, std::memory_order_release);
}

int begin_search() {
    if (g_state.load(std::memory_order_acquire) != State::requested || g_owner != ::getpid()) return 0;
    BusyGuard busy;
    g_search = new (g_room) holders::Search;
    const int error = recorder().begin_search(*g_search);
    if (error == 0) {
        g_state.store(State::searching, std::memory_order_release);
    } else {
        recorder().answer_search(g_request, error);
        end_search();
    }
    return 0;
}

}  // namespace

void consider() noexcept {
    Recorder& recorder = hiwater::recorder();
    switch (g_state.load(std::memory_order_acquire)) {
        case State::idle: {
            const std::uint32_t wanted = recorder.search_request();
            if (wanted == recorder.search_answer()) return;
            g_request = wanted;
            g_owner = ::getpid();
            g_state.store(State::requested, std::memory_order_release);
            return g_call.request();
        }
        case State::requested:
            return g_call.request();
        case State::searching:
            if (!g_search->has_ended(kLongestNs)) return;
            recorder.answer_search(g_request, recorder.end_search(*g_search, "", g_request));
            return end_search();
    }
}

void abandon() noexcept {
    if (g_search != nullptr) end_search();
    g_state.store(State::idle, std::memory_order_release);
}

// What the search has mapped is gone, or its parent's.
void forget_in_child() noexcept {
    g_search = nullptr;
    g_state.store(State::idle, std::memory_order_release);
}

}  // namespace hiwater::holder_requests
