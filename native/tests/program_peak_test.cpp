#include "session/program_peak.h"

#include "support.h"

namespace hiwater::tests {

namespace {

// A process whose memory is known at each moment: the program's, pages that touch_pages() put, and others of the
// recorder's.
struct Process {
    std::int64_t program = 1000, put_there = 0, others = 50;
    std::int64_t kernel_peak = 0, program_peak = 0;
    PutPages put;

    std::int64_t resident() const { return program + put_there + others; }
    void pass() {
        kernel_peak = std::max(kernel_peak, resident());
        program_peak = std::max(program_peak, program);
    }
    // Pages come one by one, and the program goes on meanwhile.
    void add_pages(Trace& trace, std::int64_t count) {
        put.begin_putting(static_cast<std::size_t>(count));
        for (; count > 0; count -= 10, put_there += 10) change_program(trace);
        pass();
    }
    void change_program(Trace& trace) {
        program = std::max<std::int64_t>(0, program + static_cast<std::int64_t>(trace.below(80)) - 38);
        pass();
    }
    // Some of the others, which `peak` has counted. The program goes on meanwhile.
    void give_back(Trace& trace, ProgramPeak& peak) {
        const std::int64_t most = others / 2;
        peak.take_for_put(most, put);
        if (trace.one_in(2)) peak.sample(resident(), kernel_peak, put);
        put.begin_removing(static_cast<std::size_t>(most));
        for (std::int64_t left = static_cast<std::int64_t>(trace.below(static_cast<std::uint64_t>(most) + 1));
             left >= 10; left -= 10, others -= 10)
            change_program(trace);
        put.end_removing(static_cast<std::size_t>(most));
        if (trace.one_in(2)) change_program(trace);
        peak.count(count(), 0);
    }
    OwnPages count() const { return {put_there + others, 0, put.least(), put.most()}; }
};

}  // namespace

TEST_SUITE_BEGIN("program peak");

TEST_CASE("the program's peak lies within its bounds, whenever it was between samples and counts") {
    for_seeds(200, [](Trace& trace) {
        Process process;
        ProgramPeak peak;
        process.pass();
        peak.begin(process.resident(), process.put);
        peak.count(process.count(), 0);
        peak.sample(process.resident(), process.kernel_peak, process.put);
        std::int64_t tables = 0;
        for (int step = 0; step < 500; ++step) {
            process.change_program(trace);
            if (trace.one_in(5)) process.others += static_cast<std::int64_t>(trace.below(20));
            if (trace.one_in(8)) {
                const std::int64_t grown = tables + 10 * static_cast<std::int64_t>(1 + trace.below(20));
                process.add_pages(trace, grown);  // beside the old ones, which then go
                if (trace.one_in(3)) peak.sample(process.resident(), process.kernel_peak, process.put);
                process.put.end_putting(static_cast<std::size_t>(grown));
                process.put.begin_removing(static_cast<std::size_t>(tables));
                process.put_there -= tables;
                process.put.end_removing(static_cast<std::size_t>(tables));
                tables = grown;
            }
            process.pass();
            if (trace.one_in(4)) peak.sample(process.resident(), process.kernel_peak, process.put);
            if (trace.one_in(20)) {
                peak.sample(process.resident(), process.kernel_peak, process.put);
                peak.count(process.count(), 0);
                CHECK(peak.bytes() <= process.program_peak);
                CHECK(peak.bytes() + peak.error_bytes() >= process.program_peak);
                if (trace.one_in(2)) process.give_back(trace, peak);
            }
        }
    });
}

TEST_CASE("where pages were given back, the program may have come up to the kernel's peak unseen") {
    Process process;
    ProgramPeak peak;
    const auto read = [&] {
        process.pass();
        peak.sample(process.resident(), process.kernel_peak, process.put);
    };
    peak.begin(process.resident(), process.put);
    process.others = 500;
    read();
    peak.count(process.count(), 0);
    read();
    CHECK(peak.error_bytes() == 0);
    peak.take_for_put(300, process.put);
    read();
    process.put.begin_removing(300);
    process.others = 200;
    process.put.end_removing(300);
    peak.count(process.count(), 0);
    process.program = 1250;
    process.pass();
    process.program = 1000;
    read();
    CHECK(process.kernel_peak == 1500);
    CHECK(peak.bytes() == 1000);
    CHECK(peak.error_bytes() == 300);
}

TEST_CASE(
    "pages that are given back are no part of a later peak's overhead, and those of a later moment no part of an "
    "earlier one's") {
    Process process;
    ProgramPeak peak;
    const auto read = [&] {
        process.pass();
        peak.sample(process.resident(), process.kernel_peak, process.put);
        peak.count(process.count(), 7);
    };
    peak.begin(process.resident(), process.put);
    process.others = 500;
    read();
    process.others = 100;
    read();
    process.program = 2000;
    read();
    CHECK(peak.bytes() == 2000 - 7);
    CHECK(peak.overhead_bytes() == 107);
    process.program = 1500;
    process.others = 900;
    read();
    CHECK(process.kernel_peak == 2400);
    CHECK(peak.bytes() == 2000 - 7);
    CHECK(peak.overhead_at(process.put.least()) == 907);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
