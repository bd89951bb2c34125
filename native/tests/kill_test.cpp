// A process may be killed between any two instructions. A child keeps accounts and its parent runs it one instruction
// at a time; after each, what lies in the file must be a capture.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/pages.h"
#include "accounts_model.h"
#include "accounting/accounts.h"
#include "support.h"

namespace hiwater::tests {

namespace {

using capture::Kind;
using capture::Table;

struct Event {
    enum class Sort { credit, debit, close_slice } sort;
    std::uint32_t id;
    std::int64_t bytes;
};
constexpr std::uint32_t kAccounts = 4;

std::vector<Event> some_events(Trace& trace, int count) {
    std::vector<Event> events, live;
    for (int i = 0; i < count; ++i) {
        if (trace.one_in(6)) {
            events.push_back({Event::Sort::close_slice, 0, 0});
        } else if (live.empty() || trace.below(5) < 3) {
            live.push_back({Event::Sort::credit, static_cast<std::uint32_t>(1 + trace.below(kAccounts)),
                            static_cast<std::int64_t>(1 + trace.below(1000))});
            events.push_back(live.back());
        } else {
            std::swap(live[trace.below(live.size())], live.back());
            events.push_back({Event::Sort::debit, live.back().id, live.back().bytes});
            live.pop_back();
        }
    }
    return events;
}

// The peak after each number of events.
std::vector<std::int64_t> peaks(const std::vector<Event>& events) {
    AccountsModel model;
    for (std::uint32_t id = 1; id <= kAccounts; ++id) model.add_account(Kind::native);
    std::vector<std::int64_t> out{0};
    for (const Event& event : events) {
        if (event.sort == Event::Sort::credit) model.credit(event.id, event.bytes);
        if (event.sort == Event::Sort::debit) model.change(event.id, -event.bytes, -1);
        if (event.sort == Event::Sort::close_slice) model.close_slice();
        out.push_back(model.peak().peak.bytes);
    }
    return out;
}

[[noreturn]] void keep_accounts(Accounts& accounts, const std::vector<Event>& events,
                                std::atomic<std::uint32_t>& done) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    for (const Event& event : events) {
        if (event.sort == Event::Sort::credit) accounts.credit(event.id, event.bytes);
        if (event.sort == Event::Sort::debit) accounts.debit(event.id, event.bytes);
        if (event.sort == Event::Sort::close_slice) accounts.close_slice(done.load() + 1);
        done.fetch_add(1);
    }
    ::_exit(0);
}

void check_moment(const FileView& view, const std::vector<Event>& events, const std::vector<std::int64_t>& peak_after,
                  std::uint32_t done) {
    const std::uint32_t next = std::min<std::uint32_t>(done + 1, static_cast<std::uint32_t>(events.size()));
    const std::int64_t in_flight = next > done ? events[done].bytes : 0;
    const std::int64_t peak = view.peak().bytes;
    if (peak != peak_after[done] && peak != peak_after[next])
        FAIL("the peak is ", peak, " in event ", done, ", not ", peak_after[done]);
    std::int64_t at_peak = 0, live = 0;
    for (std::uint32_t id = 1; id <= kAccounts; ++id) {
        at_peak += view.at_peak(id).bytes;
        live += view.record<capture::AccountRecord>(Table::accounts, id).live_bytes;
        if (view.at_peak(id).bytes < 0) FAIL("account ", id, " held less than nothing at the peak");
    }
    if (std::abs(at_peak - peak) > in_flight)
        FAIL("the accounts of event ", done, " make ", at_peak, " of a peak of ", peak);
    if (std::abs(live - view.header().live_bytes) > in_flight)
        FAIL("the accounts of event ", done, " hold ", live, ", not ", view.header().live_bytes);
    for (std::uint64_t i = 0; i < view.count(Table::slices); ++i) {
        const auto& slice = view.record<capture::SliceRecord>(Table::slices, i);
        if (slice.first_entry + slice.entry_count > view.count(Table::slice_entries))
            FAIL("slice ", i, " lists what is not there");
    }
}

}  // namespace

TEST_SUITE_BEGIN("kill");

TEST_CASE("between any two instructions the file is a capture, except for one event in flight") {
    if (is_slow_machine()) {
        MESSAGE("not under valgrind, which cannot step through a child");
        return;
    }
    for_seeds(3, [](Trace& trace) {
        AccountsInFile in_file;
        Accounts& accounts = in_file.accounts;
        for (std::uint32_t id = 1; id <= kAccounts; ++id) REQUIRE(accounts.account(id, Kind::native) == id);
        accounts.close_slice(0);  // the tables of slices have their extents from here on
        const std::vector<Event> events = some_events(trace, 60);
        const std::vector<std::int64_t> peak_after = peaks(events);
        auto* done = static_cast<std::atomic<std::uint32_t>*>(
            ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        REQUIRE(done != MAP_FAILED);
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) keep_accounts(accounts, events, *done);
        const FileView view(in_file.path);
        int status = 0;
        std::uint64_t steps = 0;
        while (::waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
            check_moment(view, events, peak_after, done->load());
            ++steps;
            ::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
        }
        CHECK(WIFEXITED(status));
        CHECK(done->load() == events.size());
        CHECK(steps > 20 * events.size());
        ::munmap(done, kPage);
    });
}

TEST_SUITE_END();

}  // namespace hiwater::tests
