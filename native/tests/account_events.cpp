#include "account_events.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pages.h"

namespace hiwater::tests {

namespace {

using Sort = AccountEvent::Sort;
using capture::Kind;

std::vector<AccountEvent> some_events(Trace& trace, int count) {
    std::vector<AccountEvent> events, live;
    for (int i = 0; i < count; ++i) {
        if (trace.one_in(6)) {
            events.push_back({Sort::close_slice, 0, 0});
        } else if (live.empty() || trace.below(5) < 3) {
            live.push_back({Sort::credit, static_cast<std::uint32_t>(1 + trace.below(SteppedAccounts::kAccounts)),
                            static_cast<std::int64_t>(1 + trace.below(1000))});
            events.push_back(live.back());
        } else {
            std::swap(live[trace.below(live.size())], live.back());
            events.push_back({Sort::debit, live.back().id, live.back().bytes});
            live.pop_back();
        }
    }
    return events;
}

std::vector<std::int64_t> peaks_of(const std::vector<AccountEvent>& events) {
    AccountsModel model;
    for (std::uint32_t id = 1; id <= SteppedAccounts::kAccounts; ++id) model.add_account(Kind::native);
    std::vector<std::int64_t> out{0};
    for (const AccountEvent& event : events) {
        if (event.sort == Sort::credit) model.credit(event.id, event.bytes);
        if (event.sort == Sort::debit) model.change(event.id, -event.bytes, -1);
        if (event.sort == Sort::close_slice) model.close_slice();
        out.push_back(model.peak().peak.bytes);
    }
    return out;
}

}  // namespace

SteppedAccounts::SteppedAccounts(Trace& trace, int count)
    : events_(some_events(trace, count)), peaks_(peaks_of(events_)) {
    for (std::uint32_t id = 1; id <= kAccounts; ++id) REQUIRE(in_file_.accounts.account(id, Kind::native) == id);
    in_file_.accounts.close_slice(0);  // the tables of slices have their extents from here on
    view_ = std::make_unique<FileView>(in_file_.path);
    void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(page != MAP_FAILED);
    done_ = static_cast<std::atomic<std::uint32_t>*>(page);
}

void SteppedAccounts::keep_accounts() {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    Accounts& accounts = in_file_.accounts;
    for (const AccountEvent& event : events_) {
        if (event.sort == Sort::credit) accounts.credit(event.id, event.bytes);
        if (event.sort == Sort::debit) accounts.debit(event.id, event.bytes);
        if (event.sort == Sort::close_slice) accounts.close_slice(done_->load() + 1);
        done_->fetch_add(1);
    }
    ::_exit(0);
}

std::uint64_t SteppedAccounts::run(const std::function<void(pid_t)>& visit) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) keep_accounts();
    int status = 0;
    std::uint64_t steps = 0;
    for (; ::waitpid(child, &status, 0) == child && WIFSTOPPED(status); ++steps) {
        visit(child);
        ::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
    }
    CHECK(WIFEXITED(status));
    CHECK(done() == events_.size());
    CHECK(steps > 20 * events_.size());
    return steps;
}

}  // namespace hiwater::tests
