// The line recorder against a model that remembers everything: every level of live memory while a line was open.
#include <algorithm>
#include <map>
#include <vector>

#include "accounting/thread_heap.h"
#include "lines/line_recorder.h"
#include "support.h"

namespace hiwater::tests {

namespace {

using lines::LineFigure;
using lines::LineRecorder;

constexpr int kFunctions = 4, kLinesEach = 5;
const char g_codes[kFunctions] = {};

struct Expected {
    std::uint64_t calls = 0;
    std::int64_t kept = 0, allocated = 0, peak = 0;
};

struct OpenLine {
    int frame, function, line;
    bool outermost;
    std::int64_t start, asked, highest;
};

// A thread that calls, runs lines, takes and gives memory, and returns, in a mirror of its own.
class Program {
public:
    explicit Program(Trace& trace) : trace_(trace) {}

    void step() {
        const std::uint64_t choice = trace_.below(10);
        if (choice < 5) return change();
        if (choice < 8) return run_line();
        if (choice == 8 && depth_ < 12) {
            ++depth_;
            return run_line();
        }
        if (depth_ > 0) leave();
    }
    void finish() {
        while (depth_ > 0) leave();
    }
    const std::map<std::pair<int, int>, Expected>& expected() const { return expected_; }

private:
    const void* frame_at(int depth) const { return &frames_[depth]; }

    void change() {
        const auto bytes = static_cast<std::int64_t>(trace_.below(1000)) * (trace_.one_in(3) ? -1 : 1);
        thread_heap.change(bytes);
        live_ += bytes;
        if (bytes > 0) asked_ += bytes;
        for (OpenLine& line : open_) line.highest = std::max(line.highest, live_);
    }
    void close_above(int depth) {
        while (!open_.empty() && open_.back().frame >= depth) {
            const OpenLine line = open_.back();
            open_.pop_back();
            if (!line.outermost) continue;
            Expected& figures = expected_[{line.function, line.line}];
            figures.kept += live_ - line.start;
            figures.allocated += asked_ - line.asked;
            figures.peak = std::max(figures.peak, line.highest - line.start);
        }
    }
    void run_line() {
        if (depth_ == 0) depth_ = 1;
        if (function_.size() < static_cast<std::size_t>(depth_)) function_.resize(static_cast<std::size_t>(depth_), -1);
        int& function = function_[static_cast<std::size_t>(depth_ - 1)];
        if (function < 0) function = static_cast<int>(trace_.below(kFunctions));
        const int line = static_cast<int>(trace_.below(kLinesEach));
        close_above(depth_);
        const auto is_it = [&](const OpenLine& other) { return other.function == function && other.line == line; };
        const bool outermost = std::none_of(open_.begin(), open_.end(), is_it);
        open_.push_back({depth_, function, line, outermost, live_, asked_, live_});
        ++expected_[{function, line}].calls;
        lines::on_line(frame_at(depth_), &g_codes[function], line + 1);
    }
    void leave() {
        close_above(depth_);
        function_.resize(static_cast<std::size_t>(depth_ - 1));
        lines::on_exit(frame_at(depth_), false);
        --depth_;
    }

    Trace& trace_;
    const char frames_[64] = {};
    int depth_ = 0;
    std::vector<int> function_;  // by depth; -1: not begun
    std::int64_t live_ = 0, asked_ = 0;
    std::vector<OpenLine> open_;
    std::map<std::pair<int, int>, Expected> expected_;
};

}  // namespace

TEST_SUITE_BEGIN("lines");

TEST_CASE("every line's figures are those of a model that remembers all") {
    for_seeds(200, [](Trace& trace) {
        LineRecorder recorder(trace.one_in(4)), other(false);
        for (int f = 0; f < kFunctions; ++f) {
            recorder.watch(&g_codes[f], recorder.add_group(1, kLinesEach), false);
            if (f % 2 == 0) other.watch(&g_codes[f], other.add_group(1, kLinesEach), false);
        }
        recorder.set_active(true);
        other.set_active(trace.one_in(2));
        Program program(trace);
        for (int i = 0; i < 400; ++i) program.step();
        program.finish();
        CHECK(lines::self_check() == "");
        for (const auto& [place, wanted] : program.expected()) {
            const LineFigure& got = *recorder.group(static_cast<std::uint32_t>(place.first)).figure(place.second + 1);
            REQUIRE(got.calls == wanted.calls);
            REQUIRE(got.kept_bytes == wanted.kept);
            REQUIRE(got.allocated_bytes == wanted.allocated);
            REQUIRE(got.peak_bytes == wanted.peak);
        }
    });
}

TEST_CASE("a recorder that goes away in the middle of a line leaves nothing behind") {
    static const char frames[2] = {};
    {
        LineRecorder outer(false), inner(false);
        outer.watch(&g_codes[0], outer.add_group(1, 9), false);
        inner.watch(&g_codes[1], inner.add_group(1, 9), false);
        outer.set_active(true);
        inner.set_active(true);
        lines::on_line(&frames[0], &g_codes[0], 1);
        thread_heap.change(1000);
        lines::on_line(&frames[1], &g_codes[1], 1);
        thread_heap.change(500);
        outer.set_active(false);
        thread_heap.change(-700);
        lines::on_exit(&frames[1], false);
        CHECK(outer.group(0).figure(1)->peak_bytes == 1500);
        CHECK(inner.group(0).figure(1)->kept_bytes == -200);
        CHECK(inner.group(0).figure(1)->peak_bytes == 500);
    }
    CHECK_FALSE(lines::is_watched(&g_codes[0]));
    CHECK(lines::self_check() == "");
}

TEST_CASE("a suspended line goes on where it was, whatever came between") {
    static const char frames[2] = {};
    LineRecorder recorder(false);
    recorder.watch(&g_codes[0], recorder.add_group(1, 9), false);
    recorder.set_active(true);
    lines::on_line(&frames[0], &g_codes[0], 3);
    thread_heap.change(1000);
    lines::on_exit(&frames[0], true);
    thread_heap.change(50'000);
    lines::on_resume(&frames[0], &g_codes[0], 3);
    thread_heap.change(500);
    thread_heap.change(-1500);
    lines::on_exit(&frames[0], false);
    const LineFigure& line = *recorder.group(0).figure(3);
    CHECK(line.calls == 1);
    CHECK(line.kept_bytes == 0);
    CHECK(line.allocated_bytes == 1500);
    CHECK(line.peak_bytes == 1500);
    CHECK(recorder.group(0).figure(10) == nullptr);
    CHECK(recorder.group(0).figure(0) == nullptr);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
