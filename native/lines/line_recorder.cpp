// The line recorder. Longer than 400 lines because opening, closing and attributing lines keep one set of invariants,
// which self_check() names.
#include "lines/line_recorder.h"

#include <algorithm>
#include <new>

#include "accounting/thread_heap.h"
#include "base/own_file.h"
#include "base/process.h"
#include "base/uncopied.h"

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

// --- resident memory

std::int64_t resident_now() noexcept {
    static const bool is_kept = (own_files::statm.keep(), true);  // each line reads it
    static_cast<void>(is_kept);
    return std::max<std::int64_t>(process::resident_bytes(), 0);
}

// One reading serves the line that ends and the one that begins.
class Resident {
public:
    std::int64_t of(const Group& group) noexcept {
        if (!group.reads_resident) return 0;
        if (group.meter != nullptr) return group.meter->bytes;
        if (bytes_ < 0) bytes_ = resident_now();
        return bytes_;
    }

private:
    std::int64_t bytes_ = -1;
};

// --- segments

// Returns whether no other frame of this thread has the line open, and notes that it is open now.
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
    frame.saved_peak_bytes = heap.peak_bytes;
    heap.peak_bytes = heap.live_bytes;
    frame.resident_bytes = resident.of(*frame.group);
}

void close_segment(LineThread& thread, Frame& frame, Resident& resident) noexcept {
    LineFigure* line = frame.line;
    if (line == nullptr) return;
    frame.line = nullptr;
    ThreadHeap& heap = thread_heap;
    const std::int64_t peak = heap.peak_bytes;
    heap.peak_bytes = std::max(frame.saved_peak_bytes, peak);
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
        line->peak_bytes = std::max(line->peak_bytes, frame.before_bytes + peak - frame.live_bytes);
    }
    if (frame.outermost || (frame.group->recursion_apart && !frame.nested)) {
        line->resident_bytes += resident_end - frame.resident_bytes;
    }
    frame.before_bytes += kept;
}

// --- frames

std::uint32_t g_generation = 0;  // moves when something is switched off

// Removes the frames of groups that are not active any more. Their peaks nest, so the lines above the lowest such frame
// close, too, and continue in a new segment.
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

// The caller of a recursive call continues as if the call had changed nothing.
void take_from_caller(LineThread& thread, const Frame& ended, Resident& resident) noexcept {
    const Group& group = *ended.group;
    if (!group.recursion_apart || ended.nested || ended.epoch != group.epoch) return;
    const std::int64_t change = resident.of(group) - ended.resident_entered_bytes;
    const auto is_caller = [&](const Frame& other) {
        return other.group == ended.group && other.code == ended.code && &other != &ended && other.line != nullptr;
    };
    const auto caller = std::find_if(thread.frames.rbegin(), thread.frames.rend(), is_caller);
    if (caller != thread.frames.rend()) caller->resident_bytes += change;
}

void pop(LineThread& thread, Resident& resident) noexcept {
    close_segment(thread, thread.frames.back(), resident);
    take_from_caller(thread, thread.frames.back(), resident);
    thread.frames.pop_back();
}

// Puts the frame's entries (one for each group that watches its code) on top of the stack; what lies above has ended
// unseen.
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
        if (!watch.group->active || (watch.group->only != nullptr && watch.group->only != &thread)) continue;
        Frame& entry = thread.frames.emplace_back();
        entry.frame = frame;
        entry.code = code;
        entry.group = watch.group;
        entry.nested = watch.nested;
    }
}

// A frame that a line took in, now that the line is open.
void begin_frame(Frame& frame, Resident& resident) noexcept {
    Group& group = *frame.group;
    frame.resident_entered_bytes = resident.of(group);
    if (!frame.nested && group.figures.calls++ == 0) group.figures.resident_first_bytes = frame.resident_entered_bytes;
}

long g_told = 0;  // recorders that have a meter or a listener

template <typename One>
void add_once(std::vector<std::shared_ptr<One>>& all, const std::shared_ptr<One>& one) {
    if (one != nullptr && std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
}

// While it stands, the thread's heap does not move.
class HeapAside : Uncopied {
public:
    HeapAside() noexcept : before_(thread_heap) {}
    ~HeapAside() { thread_heap = before_; }

private:
    const ThreadHeap before_;
};

bool hear(const std::vector<std::shared_ptr<Listener>>& listeners, const Event& event) noexcept {
    const HeapAside aside;
    bool goes_on = true;
    for (const auto& listener : listeners) goes_on = listener->hear(event) && goes_on;
    return goes_on;
}

}  // namespace

bool tell(const Event& event) noexcept {
    if (g_told == 0) [[likely]]
        return true;
    std::vector<std::shared_ptr<Meter>> meters;  // ours while they run: their recorder may go
    std::vector<std::shared_ptr<Listener>> listeners;
    try {
        const auto found = watched().find(event.code);
        if (found == watched().end()) return true;
        for (const Watch& watch : found->second) {
            const Group& group = *watch.group;
            if (!group.active || (group.only != nullptr && group.only != &own_state())) continue;
            add_once(meters, group.meter);
            add_once(listeners, group.listener);
        }
    } catch (const std::bad_alloc&) {
        return true;  // their last figures stay
    }
    bool goes_on = listeners.empty() || hear(listeners, event);
    for (const auto& meter : meters) goes_on = meter->read() && goes_on;
    return goes_on;
}

bool is_watched(const void* code) noexcept { return watched().find(code) != watched().end(); }

void on_line(const void* frame, const void* code, std::int32_t line) noexcept {
    LineThread& thread = own_state();
    Resident resident;
    bool is_new = false;
    try {
        is_new = !bring_to_top(mine(), frame, code, resident);
        if (is_new) push(thread, frame, code);
    } catch (const std::bad_alloc&) {
        return;  // this frame goes unmeasured
    }
    auto& frames = thread.frames;
    std::size_t first = frames.size();
    while (first > 0 && frames[first - 1].frame == frame) close_segment(thread, frames[--first], resident);
    for (; first < frames.size(); ++first) {
        LineFigure* figure = frames[first].group->active ? frames[first].group->figure(line) : nullptr;
        if (figure != nullptr) open_segment(thread, frames[first], figure, true, resident);
        if (is_new) begin_frame(frames[first], resident);
    }
}

void on_resume(const void* frame, const void* code, std::int32_t line) noexcept {
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
        frames[first].resident_entered_bytes = resident.of(group);
    }
}

void on_exit(const void* frame, bool suspends) noexcept {
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
        take_from_caller(thread, entry, resident);
        frames.pop_back();
    }
}

// --- recorders

LineRecorder::~LineRecorder() {
    set_active(false);
    drop_told();  // a thread that ends may be the last to release a group, without the GIL
    for (const void* code : codes_) {
        const auto found = watched().find(code);
        if (found == watched().end()) continue;
        std::erase_if(found->second, [&](const Watch& watch) {
            return std::find(groups_.begin(), groups_.end(), watch.group) != groups_.end();
        });
        if (found->second.empty()) watched().erase(found);
    }
}

void LineRecorder::drop_told() {
    std::shared_ptr<Meter> meter;  // what they keep alive goes last: that may run foreign code
    std::shared_ptr<Listener> listener;
    if (settings_.is_told() && !groups_.empty()) --g_told;
    meter.swap(settings_.meter);
    listener.swap(settings_.listener);
    for (const auto& group : groups_) {
        group->meter = nullptr;
        group->listener = nullptr;
    }
}

std::uint32_t LineRecorder::add_group(std::int32_t first_line, std::int32_t last_line, std::string_view label) {
    if (settings_.is_told() && groups_.empty()) ++g_told;
    groups_.push_back(std::make_shared<Group>(settings_, room_, first_line, std::max(first_line, last_line), label));
    return static_cast<std::uint32_t>(groups_.size() - 1);
}

void LineRecorder::watch(const void* code, std::uint32_t group, bool nested) {
    watched()[code].push_back({groups_.at(group), nested});
    codes_.push_back(code);
}

// What is open in the calling thread ends here, with its figures. In other threads it does not count, because the part
// that came before now cannot be determined.
bool LineRecorder::set_active(bool active, bool here) {
    if (active == settings_.active) return true;
    const bool goes_on = active || settings_.meter == nullptr || settings_.meter->read();
    if (active == settings_.active) return goes_on;  // the meter was quicker
    settings_.active = active;
    settings_.only = active && here ? &own_state() : nullptr;
    for (const auto& group : groups_) static_cast<Settings&>(*group) = settings_;
    if (active) return goes_on;
    ++g_generation;
    drop_inactive(own_state());
    for (const auto& group : groups_) {
        ++group->epoch;
        for (LineFigure& figure : group->figures.lines()) figure.open = 0;
        group->parked.clear();
    }
    return goes_on;
}

void LineRecorder::clear() {
    for (const auto& group : groups_) {
        ++group->epoch;
        group->figures.clear();
        group->parked.clear();
    }
}

int LineRecorder::keep_in(const char* path) {
    const int error = room_->move_to(path);  // first: a child of a child must not clear its parent's
    clear();
    return error;
}

std::string self_check() {
    const LineThread& thread = mine();
    if (!thread.frames.empty()) return std::to_string(thread.frames.size()) + " frames are on the stack of lines";
    if (thread.unmarked != 0) return std::to_string(thread.unmarked) + " open lines belong to another thread";
    if (thread_heap.peak_bytes < thread_heap.live_bytes) return "the thread's peak is below its live bytes";
    for (const auto& [code, watches] : watched()) {
        for (const Watch& watch : watches) {
            for (const LineFigure& figure : watch.group->figures.lines()) {
                if (figure.open != 0) return "a line is open that nobody runs";
                if (figure.calls == 0 && figure.allocated_bytes != 0) return "a line that never ran has allocated";
                if (figure.peak_bytes < 0) return "a line's peak is below its start";
            }
        }
    }
    return {};
}

}  // namespace hiwater::lines
