#include "line_recorder.h"

#include <fcntl.h>
#include <pthread.h>
#if __has_include(<pyconfig.h>)
#include <pyconfig.h>  // says whether there is a GIL
#endif
#include <unistd.h>

#include <algorithm>
#include <new>

#include "../ledger/thread_heap.h"
#include "../process.h"

namespace hiwater::lines {

namespace {

using Watches = std::vector<Watch>;

std::unordered_map<const void*, Watches>& watched() {
    static auto* const all = new std::unordered_map<const void*, Watches>;  // threads outlive what is destroyed at exit
    return *all;
}

LineThread& own_state() noexcept {
    thread_local LineThread thread;
    return thread;
}

// With a GIL the events of all threads come one after the other.
#if defined(Py_GIL_DISABLED)
FutexMutex g_mutex;
using Guard = MutexHold;
#define HIWATER_LINES_GUARD Guard guard(g_mutex)
#else
#define HIWATER_LINES_GUARD static_cast<void>(0)
#endif

// --- resident memory -------------------------------------------------------------------------------------------------------------

int g_statm = -1;

void forget_statm() noexcept {
    if (g_statm >= 0) ::close(g_statm);  // it speaks of the parent
    g_statm = -1;
}

std::int64_t resident_now() noexcept {
    if (g_statm < 0) {
        static const int once = ::pthread_atfork(nullptr, nullptr, forget_statm);
        static_cast<void>(once);
        g_statm = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
        if (g_statm < 0) return 0;
    }
    const std::int64_t bytes = process::read_statm(g_statm);
    return bytes < 0 ? 0 : bytes;
}

// One reading serves the line that ends and the one that begins.
class Resident {
public:
    std::int64_t of(const Group& group) noexcept {
        if (!group.reads_resident) return 0;
        if (bytes_ < 0) bytes_ = resident_now();
        return bytes_;
    }

private:
    std::int64_t bytes_ = -1;
};

// --- segments --------------------------------------------------------------------------------------------------------------------

// Whether no other frame of this thread has the line open, and the mark that it is open now.
bool take(LineThread& thread, const Frame& frame, LineFigure& line) noexcept {
    if (thread.unmarked == 0) {
        if (line.open == 0) line.opener = &thread;
        if (line.opener == &thread) return ++line.open == 1;
    }
    ++thread.unmarked;
    return std::none_of(thread.frames.begin(), thread.frames.end(),
                        [&](const Frame& other) { return &other != &frame && other.line == &line; });
}

// Lines close in the reverse order of their opening, so while there are unmarked ones the one that closes is.
void give_back(LineThread& thread, const Frame& frame, LineFigure& line) noexcept {
    if (thread.unmarked > 0) {
        --thread.unmarked;
    } else if (frame.epoch == frame.group->epoch) {
        --line.open;
    }
}

void open_segment(LineThread& thread, Frame& frame, LineFigure* line, bool is_call, Resident& resident) noexcept {
    frame.line = line;
    frame.epoch = frame.group->epoch;
    frame.outermost = take(thread, frame, *line);
    if (is_call && (frame.outermost || !frame.nested)) ++line->calls;
    if (is_call) frame.before_bytes = 0;
    ThreadHeap& heap = thread_heap;
    frame.live_bytes = heap.live_bytes;
    frame.allocated_bytes = heap.allocated_bytes;
    frame.saved_mark_bytes = heap.mark_bytes;
    heap.mark_bytes = heap.live_bytes;
    frame.resident_bytes = resident.of(*frame.group);
}

void close_segment(LineThread& thread, Frame& frame, Resident& resident) noexcept {
    LineFigure* line = frame.line;
    if (line == nullptr) return;
    frame.line = nullptr;
    ThreadHeap& heap = thread_heap;
    const std::int64_t mark = heap.mark_bytes;
    heap.mark_bytes = std::max(frame.saved_mark_bytes, mark);
    give_back(thread, frame, *line);
    if (frame.epoch != frame.group->epoch) return;
    const std::int64_t kept = heap.live_bytes - frame.live_bytes;
    const std::int64_t resident_end = resident.of(*frame.group);
    line->resident_start_bytes = frame.resident_bytes;
    line->resident_end_bytes = resident_end;
    line->resident_highest_bytes = std::max(line->resident_highest_bytes, resident_end);
    if (frame.outermost) {
        line->kept_bytes += kept;
        line->allocated_bytes += heap.allocated_bytes - frame.allocated_bytes;
        line->peak_bytes = std::max(line->peak_bytes, frame.before_bytes + mark - frame.live_bytes);
        line->resident_bytes += resident_end - frame.resident_bytes;
    }
    frame.before_bytes += kept;
}

// --- frames ----------------------------------------------------------------------------------------------------------------------

std::uint32_t g_generation = 0;  // moves when something is switched off

// Takes out the frames of what is not active any more. Marks nest, so what lies above the lowest of their lines closes, too, and
// goes on in a new segment.
[[gnu::noinline]] void drop_inactive(LineThread& thread) {
    auto& frames = thread.frames;
    const auto is_inactive = [](const Frame& frame) { return frame.line != nullptr && !frame.group->active; };
    const auto lowest = std::find_if(frames.begin(), frames.end(), is_inactive);
    Resident resident;
    std::vector<LineFigure*> lines(static_cast<std::size_t>(frames.end() - lowest));
    for (std::size_t i = lines.size(); i-- > 0;) {
        Frame& frame = lowest[static_cast<std::ptrdiff_t>(i)];
        lines[i] = frame.line;
        close_segment(thread, frame, resident);
    }
    for (std::size_t i = 0; i < lines.size(); ++i) {
        Frame& frame = lowest[static_cast<std::ptrdiff_t>(i)];
        if (frame.group->active && lines[i] != nullptr) open_segment(thread, frame, lines[i], false, resident);
    }
    std::erase_if(frames, [](const Frame& frame) { return !frame.group->active; });
    thread.generation = g_generation;
}

void pop(LineThread& thread, Resident& resident) noexcept {
    close_segment(thread, thread.frames.back(), resident);
    thread.frames.pop_back();
}

// Puts the frame's entries (one for each group that watches its code) on top of the stack; what lies above has ended unseen.
bool bring_to_top(LineThread& thread, const void* frame, const void* code, Resident& resident) noexcept {
    auto& frames = thread.frames;
    if (!frames.empty() && frames.back().frame == frame && frames.back().code == code) [[likely]]
        return true;
    const auto is_it = [&](const Frame& other) { return other.frame == frame; };
    if (std::none_of(frames.begin(), frames.end(), is_it)) return false;
    while (frames.back().frame != frame) pop(thread, resident);
    if (frames.back().code == code) return true;
    while (!frames.empty() && frames.back().frame == frame) pop(thread, resident);  // the address was used again
    return false;
}

LineThread& mine() {
    LineThread& thread = own_state();
    if (thread.generation != g_generation) [[unlikely]]
        drop_inactive(thread);
    return thread;
}

void push(LineThread& thread, const void* frame, const void* code) {
    const auto found = watched().find(code);
    if (found == watched().end()) return;
    for (const Watch& watch : found->second) {
        if (!watch.group->active) continue;
        Frame& entry = thread.frames.emplace_back();
        entry.frame = frame;
        entry.code = code;
        entry.group = watch.group;
        entry.nested = watch.nested;
    }
}

}  // namespace

bool is_watched(const void* code) noexcept {
    HIWATER_LINES_GUARD;
    return watched().find(code) != watched().end();
}

void on_line(const void* frame, const void* code, std::int32_t line) noexcept {
    HIWATER_LINES_GUARD;
    LineThread& thread = own_state();
    Resident resident;
    try {
        if (!bring_to_top(mine(), frame, code, resident)) push(thread, frame, code);
    } catch (const std::bad_alloc&) {
        return;  // this frame goes unmeasured
    }
    auto& frames = thread.frames;
    std::size_t first = frames.size();
    while (first > 0 && frames[first - 1].frame == frame) close_segment(thread, frames[--first], resident);
    for (; first < frames.size(); ++first) {
        LineFigure* figure = frames[first].group->active ? frames[first].group->figure(line) : nullptr;
        if (figure != nullptr) open_segment(thread, frames[first], figure, true, resident);
    }
}

void on_resume(const void* frame, const void* code, std::int32_t line) noexcept {
    HIWATER_LINES_GUARD;
    LineThread& thread = own_state();
    Resident resident;
    try {
        if (bring_to_top(mine(), frame, code, resident)) {
            while (!thread.frames.empty() && thread.frames.back().frame == frame) pop(thread, resident);
        }
        push(thread, frame, code);
    } catch (const std::bad_alloc&) {
        return;
    }
    auto& frames = thread.frames;
    std::size_t first = frames.size();
    while (first > 0 && frames[first - 1].frame == frame) --first;
    for (; first < frames.size(); ++first) {
        Group& group = *frames[first].group;
        LineFigure* figure = group.figure(line);
        const auto parked = group.parked.find(frame);
        if (parked != group.parked.end()) {
            if (parked->second.line == figure) frames[first].before_bytes = parked->second.kept_bytes;
            group.parked.erase(parked);
        }
        if (figure != nullptr) open_segment(thread, frames[first], figure, false, resident);
    }
}

void on_exit(const void* frame, bool suspends) noexcept {
    HIWATER_LINES_GUARD;
    LineThread& thread = own_state();
    auto& frames = thread.frames;
    if (std::none_of(frames.begin(), frames.end(), [&](const Frame& other) { return other.frame == frame; })) return;
    Resident resident;
    while (frames.back().frame != frame) pop(thread, resident);
    while (!frames.empty() && frames.back().frame == frame) {
        Frame& entry = frames.back();
        LineFigure* line = entry.line;
        close_segment(thread, entry, resident);
        try {
            if (suspends && line != nullptr) entry.group->parked[frame] = {line, entry.before_bytes};
        } catch (const std::bad_alloc&) {  // its resumption then counts from there
        }
        frames.pop_back();
    }
}

// --- recorders -------------------------------------------------------------------------------------------------------------------

LineRecorder::~LineRecorder() {
    set_active(false);
    HIWATER_LINES_GUARD;
    for (const void* code : codes_) {
        const auto found = watched().find(code);
        if (found == watched().end()) continue;
        std::erase_if(found->second,
                      [&](const Watch& watch) { return std::find(groups_.begin(), groups_.end(), watch.group) != groups_.end(); });
        if (found->second.empty()) watched().erase(found);
    }
}

std::uint32_t LineRecorder::add_group(std::int32_t first_line, std::int32_t last_line) {
    HIWATER_LINES_GUARD;
    auto group = std::make_shared<Group>(first_line, std::max(first_line, last_line));
    group->reads_resident = reads_resident_;
    group->active = active_;
    groups_.push_back(std::move(group));
    return static_cast<std::uint32_t>(groups_.size() - 1);
}

void LineRecorder::watch(const void* code, std::uint32_t group, bool nested) {
    HIWATER_LINES_GUARD;
    watched()[code].push_back({groups_.at(group), nested});
    codes_.push_back(code);
}

// What is open in the calling thread ends here, with its figures. In other threads it is of no account: nobody can say what of it
// came before now.
void LineRecorder::set_active(bool active) {
    HIWATER_LINES_GUARD;
    if (active == active_) return;
    active_ = active;
    for (const auto& group : groups_) group->active = active;
    if (active) return;
    ++g_generation;
    drop_inactive(own_state());
    for (const auto& group : groups_) {
        ++group->epoch;
        for (LineFigure& figure : group->figures) figure.open = 0;
        group->parked.clear();
    }
}

void LineRecorder::clear() {
    HIWATER_LINES_GUARD;
    for (const auto& group : groups_) {
        ++group->epoch;
        std::fill(group->figures.begin(), group->figures.end(), LineFigure{});
        group->parked.clear();
    }
}

std::string self_check() {
    HIWATER_LINES_GUARD;
    const LineThread& thread = mine();
    if (!thread.frames.empty()) return std::to_string(thread.frames.size()) + " frames are on the stack of lines";
    if (thread.unmarked != 0) return std::to_string(thread.unmarked) + " lines without a mark are open";
    if (thread_heap.mark_bytes < thread_heap.live_bytes) return "the thread's mark is below what it holds";
    for (const auto& [code, watches] : watched()) {
        for (const Watch& watch : watches) {
            for (const LineFigure& figure : watch.group->figures) {
                if (figure.open != 0) return "a line is open that nobody runs";
                if (figure.calls == 0 && figure.allocated_bytes != 0) return "a line that never ran has allocated";
                if (figure.peak_bytes < 0) return "a line's peak is below its start";
            }
        }
    }
    return {};
}

}  // namespace hiwater::lines
