// Line by line: what each line of watched code did to the memory of the thread that ran it.
//
// group    the figures of a function and the code nested in it: one LineFigure for each source line
// watch    that the lines of a code object are counted in a group
// frame    a running activation of watched code; each thread keeps a stack of them
// segment  a stretch in which a frame's line is open: from its line event or its generator's resumption to the frame's
// next event
//
// Lines nest as calls do, so one peak for each thread is enough for all open lines: opening a segment saves the
// thread's peak and lowers it to what is live now, closing it puts back the higher of the two. Every line's peak is
// exact, whatever runs inside. Heap figures are the thread's own (ThreadHeap). Resident memory is the process's: the
// kernel counts it for the process only.
//
// A line that is open already in the same thread (recursion) counts its calls and no bytes: each byte is in a line
// once. A recorder may distinguish the calls of a recursion, in resident memory: each call's change is then in its own
// lines and in no line above.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/uncopied.h"
#include "lines/figure_room.h"

namespace hiwater::lines {

// What the resident figures are of, where it is not the kernel's figure for this process.
class Meter {
public:
    virtual ~Meter() = default;
    // Brings `bytes` up to date. It may run foreign code. False when the program must be interrupted.
    virtual bool read() noexcept = 0;
    std::int64_t bytes = 0;
};

// What happens in a running activation of watched code.
enum class What : std::uint8_t { line, resume, exit, suspend };

struct Event {
    What what;
    const void* frame;
    const void* code;
    std::int32_t line;
};

// Is called for every event of watched code, to keep figures of its own. It may run foreign code.
class Listener {
public:
    virtual ~Listener() = default;
    // False when the program must be interrupted.
    virtual bool hear(const Event& event) noexcept = 0;
};

// What a suspended generator or coroutine takes along to its resumption.
struct Parked {
    LineFigure* line;
    std::int64_t kept_bytes;
};

// Of a recorder and all its groups.
struct Settings {
    bool reads_resident = false;
    bool recursion_apart = false;
    std::shared_ptr<Meter> meter;        // gone when the recorder is
    std::shared_ptr<Listener> listener;  // the same
    bool active = false;
    const LineThread* only = nullptr;  // the one thread that is measured; nullptr: all of them

    bool is_told() const noexcept { return meter != nullptr || listener != nullptr; }
};

struct Group : Settings {
    Group(const Settings& settings, std::shared_ptr<FigureRoom> in, std::int32_t first, std::int32_t last,
          std::string_view label)
        : Settings(settings), figures(in->add(first, last, label)), room(std::move(in)) {}
    LineFigure* figure(std::int32_t line) noexcept {
        const auto index = static_cast<std::size_t>(static_cast<std::int64_t>(line) - figures.first_line);
        return index < figures.line_count ? &figures.lines()[index]
                                          : nullptr;  // below first_line the index wraps around
    }

    FunctionFigures& figures;  // frames point into it
    const std::shared_ptr<FigureRoom> room;
    std::unordered_map<const void*, Parked> parked;
    std::uint32_t epoch = 0;  // moves when it is switched off or cleared: segments opened before are of no account
};

struct Watch {
    std::shared_ptr<Group> group;
    bool nested;  // code inside the function, such as a comprehension: its events on a line that is open are no calls
                  // of that line
};

struct Frame {
    const void* frame;  // of the interpreter; only compared
    const void* code;
    std::shared_ptr<Group> group;
    LineFigure* line = nullptr;     // nullptr: no segment is open
    std::int64_t before_bytes = 0;  // kept by earlier segments of the same call of the line
    std::int64_t live_bytes = 0, allocated_bytes = 0, saved_peak_bytes = 0, resident_bytes = 0;
    std::int64_t resident_entered_bytes = 0;  // when it was taken in
    std::uint32_t epoch = 0;
    bool nested = false, outermost = false;
};

struct LineThread {
    std::vector<Frame> frames;
    std::uint32_t generation = 0;  // of what is active, as it last saw it
    std::uint32_t unmarked = 0;    // open lines whose figure another thread had marked as its own
};

// One profiler's groups. All members need the GIL, so the events of all threads come one after the other.
class LineRecorder : Uncopied {
public:
    explicit LineRecorder(bool reads_resident, bool recursion_apart = false, std::shared_ptr<Meter> meter = nullptr,
                          std::shared_ptr<Listener> listener = nullptr)
        : settings_{reads_resident, recursion_apart, std::move(meter), std::move(listener)} {}
    ~LineRecorder();

    std::uint32_t add_group(std::int32_t first_line, std::int32_t last_line, std::string_view label = {});
    // The caller keeps the code object alive as long as this recorder.
    void watch(const void* code, std::uint32_t group, bool nested);
    // `here`: in the calling thread alone. False when the meter interrupts the program; the switch is made in any case.
    bool set_active(bool active, bool here = false);
    void clear();
    // Clears, and has the figures in a new file from now on (FigureRoom::move_to()), as in a process whose parent will
    // read them.
    int keep_in(const char* path);
    const Meter* meter() const noexcept { return settings_.meter.get(); }
    const Listener* listener() const noexcept { return settings_.listener.get(); }
    // Removes the meter and the listener; the meter's last figure stays.
    void drop_told();
    Group& group(std::uint32_t number) { return *groups_.at(number); }

private:
    Settings settings_;
    const std::shared_ptr<FigureRoom> room_ = std::make_shared<FigureRoom>();
    std::vector<std::shared_ptr<Group>> groups_;
    std::vector<const void*> codes_;
};

// --- events, in the thread they happen in

// `frame` identifies the activation. A frame is added at its first line event: it may have begun before it was watched.
bool is_watched(const void* code) noexcept;
// To be called before each event, for meters and listeners. What they run may switch recorders on and off, or let other
// threads do so: nothing of the event may have begun. False when one of them interrupts the program. What a listener
// allocates is no memory of the program's: it is in no figure of the thread's.
bool tell(const Event& event) noexcept;
void on_line(const void* frame, const void* code, std::int32_t line) noexcept;
void on_resume(const void* frame, const void* code, std::int32_t line) noexcept;
// `suspends`: a generator or coroutine that may come back.
void on_exit(const void* frame, bool suspends) noexcept;

// Empty, or what is wrong. For a moment when no watched code runs.
std::string self_check();

}  // namespace hiwater::lines
