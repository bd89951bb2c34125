// The lock and the accounting that threads share, under a memory that is as weak as a processor's may be. The threads
// are short programs of loads and stores, as lock.h and shared_events.cpp make them. Every thread may take any of its
// steps that nothing holds back, so all that aarch64 allows is tried: loads before loads, stores before stores, stores
// that others see late, loads that are made before it is known whether they count. All threads see a store at the same
// time (as aarch64 and x86-64 promise). Programs with a barrier less show that the model finds what is wrong.
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "doctest.h"

namespace hiwater::tests {

namespace {

constexpr std::size_t kPlaces = 8, kRegisters = 6, kMostThreads = 3;
constexpr int kNone = -1;

enum class Does {
    load,        // register = place
    await,       // the same, once the place holds `value`: a loop that waits
    store,       // place = value
    store_sum,   // place = register + value
    take,        // in one step, where the place holds `value` or more: place -= value, register = 1; else register = 0
    membarrier,  // every other thread passes a full barrier, one after the other
};

struct Step {
    Does does;
    int place = 0;
    std::int64_t value = 0;
    int reg = 0;
    bool acquires = false, releases = false;
    int only_if = kNone;  // this register ...
    std::int64_t is = 0;  // ... has this value
};

using Program = std::vector<Step>;

// A state of all threads and the memory.
struct State {
    std::array<std::int64_t, kPlaces> memory{};
    struct Thread {
        std::uint32_t done = 0;     // steps, as bits: taken, or found not to count
        std::uint32_t barrier = 0;  // threads that a membarrier in progress has been through
        std::array<std::int64_t, kRegisters> registers{};
        auto operator<=>(const Thread&) const = default;
    };
    std::array<Thread, kMostThreads> threads{};
    auto operator<=>(const State&) const = default;
};

class Model {
public:
    explicit Model(std::vector<Program> programs) : programs_(std::move(programs)) {}

    // Every memory that the threads can leave.
    std::set<std::array<std::int64_t, kPlaces>> run(std::array<std::int64_t, kPlaces> memory = {}) {
        State first;
        first.memory = memory;
        visit(first);
        return ends_;
    }
    std::size_t states() const { return seen_.size(); }

private:
    void visit(const State& state) {
        if (!seen_.insert(state).second) return;
        bool has_ended = true;
        for (std::size_t t = 0; t < programs_.size(); ++t) {
            for (std::size_t i = 0; i < programs_[t].size(); ++i) {
                if ((state.threads[t].done >> i & 1) != 0) continue;
                has_ended = false;
                if (may_take(state, t, i)) take(state, t, i);
            }
        }
        if (has_ended) ends_.insert(state.memory);
    }

    static bool is_load(const Step& step) { return step.does == Does::load || step.does == Does::await; }
    static bool is_done(const State::Thread& thread, std::size_t i) { return (thread.done >> i & 1) != 0; }

    // Whether an earlier step that is not done yet holds this one back.
    bool is_held(const Step& earlier, const Step& step) const {
        if (earlier.does == Does::membarrier || step.does == Does::membarrier) return true;
        if (earlier.acquires || step.releases) return true;
        if (earlier.place == step.place) return true;  // what one thread does to one place stays in order
        const bool gives = is_load(earlier) || earlier.does == Does::take;
        if (gives && step.does == Does::store_sum && earlier.reg == step.reg) return true;
        // Whether a store counts must be known; a load may be made before.
        if (gives && !is_load(step) && (earlier.reg == step.only_if || earlier.does == Does::await)) return true;
        return false;
    }
    bool may_take(const State& state, std::size_t t, std::size_t i) const {
        const Step& step = programs_[t][i];
        const State::Thread& thread = state.threads[t];
        for (std::size_t earlier = 0; earlier < i; ++earlier)
            if (!is_done(thread, earlier) && is_held(programs_[t][earlier], step)) return false;
        return step.does != Does::await || state.memory[step.place] == step.value;
    }
    // A load that was made before it was known that it counts has only set a register that nobody reads.
    static bool counts(const Step& step, const State::Thread& thread) {
        return is_load(step) || step.only_if == kNone || thread.registers[step.only_if] == step.is;
    }

    void take(const State& before, std::size_t t, std::size_t i) {
        const Step& step = programs_[t][i];
        if (step.does == Does::membarrier) return pass_barriers(before, t, i);
        State state = before;
        State::Thread& thread = state.threads[t];
        thread.done |= 1u << i;
        std::int64_t& place = state.memory[step.place];
        std::int64_t& reg = thread.registers[step.reg];
        if (!counts(step, thread)) return visit(state);
        switch (step.does) {
            case Does::load:
            case Does::await:
                reg = place;
                break;
            case Does::store:
                place = step.value;
                break;
            case Does::store_sum:
                place = reg + step.value;
                break;
            case Does::take:
                reg = place >= step.value ? 1 : 0;
                place -= reg * step.value;
                break;
            case Does::membarrier:
                break;
        }
        visit(state);
    }
    // An interrupt finds the other thread with all steps up to one done and none behind it: what was made early is made
    // again. The states in which it was not made early are visited, too.
    void pass_barriers(const State& before, std::size_t t, std::size_t i) {
        State state = before;
        State::Thread& thread = state.threads[t];
        const std::uint32_t all = (1u << programs_.size()) - 1;
        if ((thread.barrier | 1u << t) == all) {
            thread.done |= 1u << i;
            return visit(state);
        }
        for (std::size_t other = 0; other < programs_.size(); ++other) {
            const std::uint32_t done = before.threads[other].done;
            if (other == t || (thread.barrier >> other & 1) != 0 || (done & (done + 1)) != 0) continue;
            State next = state;
            next.threads[t].barrier |= 1u << other;
            visit(next);
        }
    }

    const std::vector<Program> programs_;
    std::set<State> seen_;
    std::set<std::array<std::int64_t, kPlaces>> ends_;
};

// --- the lock: places and what they mean

enum Place { biased_to, active, guarded, second_active, merged, second_merged, allowance, second_guarded };
constexpr std::int64_t kNobody = 0, kFirst = 1, kShared = 2, kInside = 1;

// What the lock protects is read and written back: a thread that is in beside another loses a count.
void count(Program& program, int reg, int only_if = kNone, std::int64_t is = 0) {
    program.push_back({.does = Does::load, .place = guarded, .reg = reg, .only_if = only_if, .is = is});
    program.push_back(
        {.does = Does::store_sum, .place = guarded, .value = 1, .reg = reg, .only_if = only_if, .is = is});
}

struct Variant {
    bool enter_acquires = true, leave_releases = true, membarrier = true, wait_acquires = true, return_releases = true;
};

// Lock::enter_fast_path(), an event, Lock::leave_fast_path().
Program owner(const Variant& variant) {
    Program out{
        {.does = Does::store, .place = active, .value = kInside},
        {.does = Does::load, .place = biased_to, .reg = 0, .acquires = variant.enter_acquires},
    };
    count(out, 1, 0, kFirst);
    out.push_back({.does = Does::store, .place = active, .value = 0, .releases = variant.leave_releases});
    return out;
}

// Lock::revoke_bias_of(), an event, and the bias returns. The mutex keeps others out.
Program revoker(const Variant& variant) {
    Program out{{.does = Does::store, .place = biased_to, .value = kNobody}};
    if (variant.membarrier) out.push_back({.does = Does::membarrier});
    out.push_back({.does = Does::await, .place = active, .value = 0, .acquires = variant.wait_acquires});
    count(out, 1);
    out.push_back({.does = Does::store, .place = biased_to, .value = kFirst, .releases = variant.return_releases});
    return out;
}

// Whether no event is lost. The owner's event is one if it saw the bias: then its register is in `second_guarded`.
bool excludes(const Variant& variant) {
    Program one = owner(variant);
    one.push_back({.does = Does::store_sum, .place = second_guarded, .reg = 0});
    Model model({one, revoker(variant)});
    std::array<std::int64_t, kPlaces> memory{};
    memory[biased_to] = kFirst;
    bool is_right = true;
    for (const auto& end : model.run(memory))
        is_right = is_right && end[guarded] == 1 + (end[second_guarded] == kFirst ? 1 : 0);
    CHECK(model.states() > 50);
    return is_right;
}

// --- sharing

// A thread that shares the lock: it takes from the common allowance and counts in an account of its own (`account`),
// which one who has the lock alone merges.
Program sharer(int active_at, int account, bool releases) {
    return {
        {.does = Does::store, .place = active_at, .value = kInside},
        {.does = Does::load, .place = biased_to, .reg = 0, .acquires = true},
        {.does = Does::take, .place = allowance, .value = 3, .reg = 1, .only_if = 0, .is = kShared},
        {.does = Does::load, .place = account, .reg = 2},
        {.does = Does::store_sum, .place = account, .value = 3, .reg = 2, .only_if = 1, .is = 1},
        {.does = Does::store, .place = active_at, .value = 0, .releases = releases},
    };
}

// Ends the sharing and merges what both counted.
Program merger(bool has_membarrier) {
    Program out{{.does = Does::store, .place = biased_to, .value = kNobody}};
    if (has_membarrier) out.push_back({.does = Does::membarrier});
    out.push_back({.does = Does::await, .place = active, .value = 0, .acquires = true});
    out.push_back({.does = Does::await, .place = second_active, .value = 0, .acquires = true});
    for (const int account : {guarded, second_guarded}) {
        out.push_back({.does = Does::load, .place = account, .reg = account == guarded ? 1 : 2});
        out.push_back({.does = Does::store_sum,
                       .place = account == guarded ? merged : second_merged,
                       .reg = account == guarded ? 1 : 2});
    }
    return out;
}

// Whether all that the sharers counted was merged, and no more than the allowance.
bool merges(bool has_membarrier, bool releases) {
    Model model(
        {sharer(active, guarded, releases), sharer(second_active, second_guarded, releases), merger(has_membarrier)});
    std::array<std::int64_t, kPlaces> memory{};
    memory[biased_to] = kShared;
    memory[allowance] = 5;  // for one of them
    bool is_right = true, is_shared = false;
    for (const auto& end : model.run(memory)) {
        is_right = is_right && end[merged] == end[guarded] && end[second_merged] == end[second_guarded] &&
                   end[guarded] + end[second_guarded] <= 5 && end[guarded] + end[second_guarded] + end[allowance] == 5;
        is_shared = is_shared || end[guarded] + end[second_guarded] == 3;
    }
    CHECK(is_shared);
    return is_right;
}

}  // namespace

TEST_SUITE_BEGIN("weak memory");

TEST_CASE("the model allows what processors do, and forbids what they do not") {
    // Two threads that store and then look at the other's place may both see nothing; with membarrier in one, not.
    const auto both_see_nothing = [](bool has_membarrier) {
        Program one{{.does = Does::store, .place = 0, .value = 1},
                    {.does = Does::load, .place = 1, .reg = 0},
                    {.does = Does::store_sum, .place = 2, .value = 1, .reg = 0}};
        Program other{{.does = Does::store, .place = 1, .value = 1}};
        if (has_membarrier) other.push_back({.does = Does::membarrier});
        other.push_back({.does = Does::load, .place = 0, .reg = 0});
        other.push_back({.does = Does::store_sum, .place = 3, .value = 1, .reg = 0});
        bool is_found = false;
        for (const auto& end : Model({one, other}).run()) is_found = is_found || (end[2] == 1 && end[3] == 1);
        return is_found;
    };
    CHECK(both_see_nothing(false));
    CHECK_FALSE(both_see_nothing(true));
    // A message: its flag may be seen before it, unless one side releases and the other acquires.
    const auto flag_comes_first = [](bool releases, bool acquires) {
        const Program writer{{.does = Does::store, .place = 0, .value = 1},
                             {.does = Does::store, .place = 1, .value = 1, .releases = releases}};
        const Program reader{{.does = Does::await, .place = 1, .value = 1, .reg = 0, .acquires = acquires},
                             {.does = Does::load, .place = 0, .reg = 1},
                             {.does = Does::store_sum, .place = 2, .value = 1, .reg = 1}};
        bool is_found = false;
        for (const auto& end : Model({writer, reader}).run()) is_found = is_found || end[2] == 1;
        return is_found;
    };
    CHECK(flag_comes_first(false, false));
    CHECK(flag_comes_first(true, false));
    CHECK(flag_comes_first(false, true));
    CHECK_FALSE(flag_comes_first(true, true));
}

TEST_CASE("the bias of the lock excludes, and needs each of its barriers") {
    CHECK(excludes({}));
    CHECK_FALSE(excludes({.membarrier = false}));
    CHECK_FALSE(excludes({.enter_acquires = false}));
    CHECK_FALSE(excludes({.leave_releases = false}));
    CHECK_FALSE(excludes({.wait_acquires = false}));
    CHECK_FALSE(excludes({.return_releases = false}));
}

TEST_CASE("threads that share the lock: all they count is merged, within the allowance") {
    CHECK(merges(true, true));
    CHECK_FALSE(merges(false, true));
    CHECK_FALSE(merges(true, false));
}

TEST_SUITE_END();

}  // namespace hiwater::tests
