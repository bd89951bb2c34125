#include "session/pace.h"

#include "support.h"

namespace hiwater::tests {

namespace {

constexpr std::uint64_t kMillisecond = 1'000'000, kSecond = 1'000 * kMillisecond;

// A program that gets `part` of a processor, sampled from `now` on.
struct PacedProgram {
    double part;
    std::uint64_t now = 0, samples = 0;
    Pace::Used used{};
    Pace pace{0, {}};

    explicit PacedProgram(double part_of_processor, std::uint64_t age_ns = 0)
        : part(part_of_processor), now(age_ns), pace(age_ns, {}) {}

    std::uint64_t sleep(bool is_near_limit = false) {
        const std::uint64_t ns = pace.next(now, used, is_near_limit);
        now += ns;
        used.program_ns += static_cast<std::uint64_t>(static_cast<double>(ns) * part);
        return ns;
    }
    void sample(std::uint64_t cost_ns) {
        used.own_ns += cost_ns;
        ++samples;
    }
    void run(std::uint64_t until, std::uint64_t cost_ns) {
        while (now < until) {
            sleep();
            sample(cost_ns);
        }
    }
};

}  // namespace

TEST_SUITE_BEGIN("pace of samples");

TEST_CASE("samples take a small part of what the program takes, whatever that is and whatever they cost") {
    for_seeds(200, [](Trace& trace) {
        const double part = 0.05 + 0.01 * static_cast<double>(trace.below(200));
        const std::uint64_t cost_ns = 10'000 + trace.below(200'000);
        PacedProgram program(part, trace.below(2) * kSecond);
        program.run(20 * kSecond, cost_ns);
        const auto allowed_ns = static_cast<double>(program.used.program_ns) / Pace::kShare +
                                static_cast<double>(20 * kSecond) / Pace::kClockShare;
        const auto at_least_ns = static_cast<double>(20 * kSecond / Pace::kLongestNs * cost_ns);
        CHECK(static_cast<double>(program.used.own_ns) <=
              1.1 * std::max(allowed_ns, at_least_ns) + Pace::kBurstNs + static_cast<double>(10 * cost_ns));
        CHECK(program.samples >= 19 * kSecond / Pace::kLongestNs - 20);
    });
}

TEST_CASE("a program that has a processor of its own is sampled as often as the samples are cheap") {
    PacedProgram program(1);
    program.run(kSecond, 20'000);
    CHECK(program.samples >= 100);
    const std::uint64_t before = program.samples;
    program.run(2 * kSecond, 20'000);
    CHECK(program.samples - before == 100);
}

TEST_CASE("one expensive sample does not change the pace") {
    PacedProgram program(1, kSecond);
    program.run(2 * kSecond, 20'000);
    program.sample(5 * kMillisecond);
    CHECK(program.sleep() == Pace::kUsualNs);
}

TEST_CASE("near a limit the pace is the usual one, whatever samples cost") {
    PacedProgram program(0.25, kSecond);
    program.run(2 * kSecond, 100'000);
    CHECK(program.sleep() == Pace::kLongestNs);
    CHECK(program.sleep(true) == Pace::kUsualNs);
}

TEST_CASE("a program that rested is sampled as often as a new one, for a while") {
    PacedProgram program(0.25, kSecond);
    program.run(3 * kSecond, 100'000);
    CHECK(program.sleep() == Pace::kLongestNs);
    program.part = 0;
    program.run(20 * kSecond, 1'000);
    program.part = 0.25;
    program.run(program.now + 50'000'000, 100'000);
    for (int i = 0; i < 10; ++i) {
        CHECK(program.sleep() == Pace::kUsualNs);
        program.sample(100'000);
    }
}

TEST_CASE("a program that rests is sampled less often at once, and as before when it works again") {
    PacedProgram program(0, kSecond);
    for (int i = 0; i < 10; ++i) program.sleep();
    CHECK(program.pace.rests());
    CHECK(program.sleep() == Pace::kLongestNs);
    program.part = 1;
    program.sleep();
    program.run(program.now + kSecond, 20'000);
    CHECK_FALSE(program.pace.rests());
    CHECK(program.sleep() == Pace::kUsualNs);
}

TEST_CASE("what a process took before it was recorded does not count") {
    const Pace::Used before{.own_ns = 0, .program_ns = 3'600 * kSecond};
    Pace pace(0, before);
    Pace::Used used = before;
    std::uint64_t now = 0, samples = 0;
    for (; now < kSecond; ++samples) {
        const std::uint64_t ns = pace.next(now, used, false);
        now += ns;
        used.program_ns += ns / 4;
        used.own_ns += 100'000;
    }
    CHECK(samples <= 80);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
