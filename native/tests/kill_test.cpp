// A process may be killed between any two instructions. A child keeps accounts and its parent runs it one instruction
// at a time; after each, what lies in the file must be a capture.
#include <algorithm>
#include <cstdlib>

#include "account_events.h"

namespace hiwater::tests {

namespace {

using capture::Table;

void check_moment(const SteppedAccounts& stepped) {
    const FileView& view = stepped.view();
    const std::uint32_t done = stepped.done();
    const std::uint32_t next = std::min<std::uint32_t>(done + 1, static_cast<std::uint32_t>(stepped.events().size()));
    const std::int64_t in_flight = next > done ? stepped.events()[done].bytes : 0;
    const std::int64_t peak = view.peak().bytes;
    if (peak != stepped.peak_after(done) && peak != stepped.peak_after(next))
        FAIL("the peak is ", peak, " in event ", done, ", not ", stepped.peak_after(done));
    std::int64_t at_peak = 0, live = 0;
    for (std::uint32_t id = 1; id <= SteppedAccounts::kAccounts; ++id) {
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
        SteppedAccounts stepped(trace, 60);
        stepped.run([&](pid_t) { check_moment(stepped); });
    });
}

TEST_SUITE_END();

}  // namespace hiwater::tests
