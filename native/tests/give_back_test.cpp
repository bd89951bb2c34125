#include "session/give_back.h"

#include "support.h"

namespace hiwater::tests {

namespace {

constexpr std::uint64_t kMillisecond = 1'000'000, kSecond = 1'000 * kMillisecond;
constexpr std::int64_t kMiB = 1 << 20;

// A program of which `used` bytes of call paths are met again within the next count after they were given back, and
// that makes new ones.
struct Program {
    GiveBack give_back;
    std::uint64_t now = 0, times = 0, spent_ns = 0;
    std::int64_t used, resident, put = 0;

    explicit Program(std::int64_t used_bytes, std::int64_t resident_bytes)
        : used(used_bytes), resident(resident_bytes) {
        put = resident;
    }
    void run(std::uint64_t until, std::int64_t new_bytes = 0, bool near_promise = false) {
        for (; now < until; now += 25 * kMillisecond) {
            if (resident < used) {
                spent_ns += GiveBack::kFaultNs * static_cast<std::uint64_t>(used - resident) / kPage;
                resident = used;
            }
            resident += new_bytes;
            put += new_bytes;
            if (!give_back.is_due(now, resident, put, near_promise)) continue;
            const std::uint64_t took_ns = static_cast<std::uint64_t>(resident);  // a millisecond for each MiB
            give_back.note(now, took_ns, resident, 0, put);
            resident = 0;
            spent_ns += took_ns;
            ++times;
        }
    }
};

}  // namespace

TEST_SUITE_BEGIN("giving back pages");

TEST_CASE("what a program used soon after the last time leaves after some seconds, if it is not used any more") {
    Program program(40 * kMiB, 40 * kMiB);
    program.run(kSecond);
    REQUIRE(program.times == 1);
    program.used = 2 * kMiB;
    program.run(9 * kSecond);
    CHECK(program.resident == 40 * kMiB);
    program.run(12 * kSecond);
    CHECK(program.resident == 2 * kMiB);
}

TEST_CASE("it takes a small part of the time, whatever a program uses") {
    for_seeds(200, [](Trace& trace) {
        const auto used = static_cast<std::int64_t>(trace.below(64)) * kMiB;
        const auto added = static_cast<std::int64_t>(trace.below(4)) * (kMiB / 4);
        const bool near_promise = trace.one_in(2);
        Program program(used, used + 4 * kMiB);
        program.run(60 * kSecond, added, near_promise);
        // The last time may not have been paid for yet, and each ten seconds there is one in any case.
        const std::uint64_t share = near_promise ? GiveBack::kPauseNearPromise : GiveBack::kPause;
        CHECK(program.spent_ns <= 60 * kSecond / share + 7 * 4 * static_cast<std::uint64_t>(program.put));
    });
}

TEST_CASE("a program whose call paths all come back is asked less and less often, one whose do not is not") {
    Program uses_all(30 * kMiB, 40 * kMiB), uses_none(0, 40 * kMiB);
    for (std::uint64_t until = kSecond; until <= 9 * kSecond; until += kSecond) {  // it never uses less than it did
        uses_all.run(until, kMiB / 8, true);
        uses_all.used = uses_all.put;
        uses_none.run(until, kMiB / 8, true);
    }
    CHECK(uses_all.times < 4);
    CHECK(uses_none.times > 8 * uses_all.times);
}

TEST_CASE("pages leave more often where the memory promise is near") {
    Program near(0, 8 * kMiB), far(0, 8 * kMiB);
    near.run(9 * kSecond, kMiB / 4, true);
    far.run(9 * kSecond, kMiB / 4, false);
    CHECK(near.times > 2 * far.times);
    CHECK(far.times > 2);
    CHECK(GiveBack::is_near_promise(39 * kMiB, 100 * kMiB));
    CHECK(!GiveBack::is_near_promise(37 * kMiB, 100 * kMiB));
}

TEST_SUITE_END();

}  // namespace hiwater::tests
