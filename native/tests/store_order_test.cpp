// Where a processor does not show a thread's stores in their order, another process that reads the capture meanwhile
// finds states that no instruction left. A child keeps accounts one instruction at a time, which gives its stores and
// where it calls order_stores(); then every state that those barriers leave possible must be a capture.
#include <cstdlib>
#include <vector>

#include "account_events.h"

#if defined(__x86_64__)  // where instructions can be stepped through, and stores are made in order

#include <sys/ptrace.h>
#include <sys/user.h>

#include <set>

extern "C" {
extern const std::int32_t __start_hiwater_order[], __stop_hiwater_order[];  // see base/store_order.h
}

namespace hiwater::tests {

namespace {

using capture::AccountPeakRecord;
using capture::AccountRecord;
using capture::Table;

constexpr std::size_t kOfHeader = 6, kOfAccount = 4, kWords = kOfHeader + kOfAccount * SteppedAccounts::kAccounts;

// What a reader needs for the peak and the accounts at it, word by word: two halves of a pair are two stores here.
struct Words {
    std::int64_t word[kWords] = {};

    static constexpr std::size_t kEpochIndex = 3;
    std::int64_t live() const { return word[0]; }
    bool is_open_slice() const { return word[1] > word[4 + static_cast<std::size_t>(word[kEpochIndex])]; }
    std::int64_t peak() const {
        return is_open_slice() ? word[1] : word[4 + static_cast<std::size_t>(word[kEpochIndex])];
    }
    const std::int64_t* account(std::uint32_t id) const { return word + kOfHeader + (id - 1) * kOfAccount; }
    std::int64_t at_peak(std::uint32_t id) const {
        const std::int64_t* const of = account(id);
        if (!is_open_slice()) return of[3];
        return of[2] == word[2] ? of[1] : of[0];
    }
    bool operator==(const Words&) const = default;
};

Words words_of(const FileView& view) {
    const capture::Header& h = view.header();
    Words out{{h.live_bytes, h.slice_peak_bytes, static_cast<std::int64_t>(h.generation), h.epoch_index,
               h.epoch[0].peak_bytes, h.epoch[1].peak_bytes}};
    for (std::uint32_t id = 1; id <= SteppedAccounts::kAccounts; ++id) {
        const auto& hot = view.record<AccountRecord>(Table::accounts, id);
        const auto& cold = view.record<AccountPeakRecord>(Table::account_peaks, id);
        const std::int64_t of[] = {hot.live_bytes, hot.saved_bytes, static_cast<std::int64_t>(hot.generation),
                                   cold.peak_bytes};
        std::copy(std::begin(of), std::end(of), out.word + kOfHeader + (id - 1) * kOfAccount);
    }
    return out;
}

struct Store {
    std::size_t word;
    std::int64_t value;
    std::uint32_t event;  // that it is of
    // Those before it in the program come before it, as the engine stores the epoch's number.
    bool is_release() const { return word == Words::kEpochIndex; }
};

// Calls visit(words) for every state from `before` on in which some of the stores can be seen, and others not.
template <typename Visit>
void each_state(const Words& before, const std::vector<Store>& stores, const Visit& visit) {
    for (std::uint32_t seen = 0; seen < 1u << stores.size(); ++seen) {
        Words words = before;
        bool is_possible = true;
        for (std::size_t i = 0; i < stores.size(); ++i) {
            if ((seen >> i & 1) == 0) continue;
            words.word[stores[i].word] = stores[i].value;
            for (std::size_t j = 0; j < i; ++j)  // stores to one word are seen in their order
                if ((seen >> j & 1) == 0 && (stores[i].is_release() || stores[i].word == stores[j].word))
                    is_possible = false;
        }
        if (is_possible) visit(words);
    }
}

class Checker {
public:
    Checker(const SteppedAccounts& stepped, bool has_barriers) : stepped_(stepped), has_barriers_(has_barriers) {}

    // After an instruction of the child, which stands at `at` now.
    void note(std::uintptr_t at, const std::set<std::uintptr_t>& barriers) {
        const Words words = words_of(stepped_.view());
        if (!is_begun_) is_begun_ = true, before_ = now_ = words;
        for (std::size_t i = 0; i < kWords; ++i)
            if (words.word[i] != now_.word[i]) stores_.push_back({i, words.word[i], stepped_.done()});
        now_ = words;
        const bool is_barrier = barriers.contains(at);
        barriers_ += is_barrier;
        // Without barriers the oldest store is seen at some time.
        if (is_barrier && has_barriers_) pass();
        while (stores_.size() > kMost) pass_oldest();
    }
    void pass() {
        check();
        before_ = now_;
        stores_.clear();
    }

    std::uint64_t states() const { return states_; }
    std::uint64_t wrong() const { return wrong_; }
    std::uint64_t barriers() const { return barriers_; }

private:
    static constexpr std::size_t kMost = 14;

    void pass_oldest() {
        check();
        before_.word[stores_.front().word] = stores_.front().value;
        stores_.erase(stores_.begin());
    }
    void check() {
        if (stores_.empty()) return;
        const std::uint32_t first = stores_.front().event, last = stores_.back().event;
        std::int64_t in_flight = 0;
        for (std::uint32_t event = first; event <= last && event < stepped_.events().size(); ++event)
            in_flight += stepped_.events()[event].bytes;
        each_state(before_, stores_, [&](const Words& words) {
            ++states_;
            bool is_known = false;
            for (std::uint32_t done = first; done <= last + 1 && done <= stepped_.events().size(); ++done)
                is_known = is_known || words.peak() == stepped_.peak_after(done);
            std::int64_t at_peak = 0, live = 0;
            for (std::uint32_t id = 1; id <= SteppedAccounts::kAccounts; ++id) {
                at_peak += words.at_peak(id);
                live += words.account(id)[0];
            }
            wrong_ +=
                !is_known || std::abs(at_peak - words.peak()) > in_flight || std::abs(live - words.live()) > in_flight;
        });
    }

    const SteppedAccounts& stepped_;
    const bool has_barriers_;
    bool is_begun_ = false;
    Words before_, now_;         // what everybody sees; what the child has stored
    std::vector<Store> stores_;  // in between
    std::uint64_t states_ = 0, wrong_ = 0, barriers_ = 0;
};

std::set<std::uintptr_t> places_of_barriers() {
    std::set<std::uintptr_t> places;
    for (const std::int32_t* entry = __start_hiwater_order; entry != __stop_hiwater_order; ++entry)
        places.insert(reinterpret_cast<std::uintptr_t>(entry) + static_cast<std::uintptr_t>(std::intptr_t{*entry}));
    return places;
}

}  // namespace

TEST_SUITE_BEGIN("kill");

TEST_CASE("where stores are seen in another order, barriers leave a capture at every moment") {
    if (is_slow_machine()) {
        MESSAGE("not under valgrind, which cannot step through a child");
        return;
    }
    const std::set<std::uintptr_t> barriers = places_of_barriers();
    REQUIRE(!barriers.empty());
    std::uint64_t wrong_without = 0;
    for_seeds(3, [&](Trace& trace) {
        SteppedAccounts stepped(trace, 60);
        Checker with(stepped, true), without(stepped, false);
        stepped.run([&](pid_t child) {
            user_regs_struct registers{};
            REQUIRE(::ptrace(PTRACE_GETREGS, child, nullptr, &registers) == 0);
            with.note(registers.rip, barriers);
            without.note(registers.rip, barriers);
        });
        with.pass();
        CHECK(with.barriers() > 60);
        CHECK(with.wrong() == 0);
        wrong_without += without.wrong();
    });
    CHECK(wrong_without > 0);
}

TEST_SUITE_END();

}  // namespace hiwater::tests

#endif
