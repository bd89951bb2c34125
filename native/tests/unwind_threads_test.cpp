// Threads that walk at once, each under the lock as in the recorder, with one unwinder: what one has learnt serves all.
#include <alloca.h>

#include <memory>
#include <mutex>

#include "support.h"
#include "unwind/unwinder.h"

namespace hiwater::tests {

namespace {

using unwind::Frames;

thread_local volatile int g_after = 0;

struct Shared {
    std::mutex lock;
    unwind::Unwinder unwinder;  // under the lock
};

[[gnu::noinline]] void descend(Shared& shared, Frames& frames, std::uint64_t shape, int left) {
    if (left == 0) {
        const std::lock_guard guard(shared.lock);
        shared.unwinder.walk({[](void* at) -> const void* { return at; }, nullptr}, &frames);
        REQUIRE(frames.count() > 0);
        return;
    }
    volatile char* const room = static_cast<char*>(alloca(16 + shape % 7 * 24));
    room[0] = 1;
    descend(shared, frames, shape / 7, left - 1);
    g_after = room[0];
}

}  // namespace

#if defined(__x86_64__) && defined(__GLIBC__)  // nowhere else are native stacks walked

TEST_SUITE_BEGIN("threads");

TEST_CASE("threads that walk share rules and modules, and forget them when a library goes") {
    REQUIRE(unwind::prepare());
    const auto shared = std::make_unique<Shared>();
    shared->unwinder.begin({true, {}, {}, 1});
    in_threads(4, [&](std::size_t number) {
        const auto frames = std::make_unique<Frames>();
        frames->forget();
        Trace trace(number);
        for (int i = 0; i < 400; ++i) {
            descend(*shared, *frames, trace.word(), static_cast<int>(trace.below(8)) + 1);
            if (trace.one_in(100)) unwind::note_unloading();
        }
    });
    CHECK(shared->unwinder.figures().walks == 1600);
    CHECK(shared->unwinder.figures().checked == 1600);
    CHECK(shared->unwinder.figures().mismatches == 0);
    CHECK(shared->unwinder.figures().unknown == 0);
}

TEST_CASE("sixty-four threads meet every rule for the first time at once") {
    REQUIRE(unwind::prepare());
    const auto shared = std::make_unique<Shared>();
    for (int round = 0; round < 5; ++round) {
        shared->unwinder.begin({true, {}, {}, 1});
        in_threads(64, [&](std::size_t number) {
            const auto frames = std::make_unique<Frames>();
            frames->forget();
            descend(*shared, *frames, number, static_cast<int>(number % 4) + 1);
        });
        CHECK(shared->unwinder.figures().checked == 64);
        CHECK(shared->unwinder.figures().mismatches == 0);
        CHECK(shared->unwinder.figures().unknown == 0);
    }
}

TEST_SUITE_END();

#endif

}  // namespace hiwater::tests
