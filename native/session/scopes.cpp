// Markers and phases that the program names.
#include "session/scopes.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/raw_calls.h"
#include "session/recorder.h"

namespace hiwater {

namespace {

std::string_view shortened(std::string_view name) noexcept {
    constexpr std::size_t kLongestName = 200;
    std::size_t bytes = std::min(name.size(), kLongestName);
    while (bytes < name.size() && bytes > 0 && (name[bytes] & 0xC0) == 0x80) --bytes;  // whole characters
    return name.substr(0, bytes);
}

}  // namespace

// Under the lock. A program that makes names up ("request 4711") does not fill the capture with them.
std::uint32_t Recorder::scope_name(std::string_view name) {
    constexpr std::size_t kMostNames = 1000;
    name = shortened(name);
    const auto known = scope_names_.find(name);
    if (known != scope_names_.end()) return known->second.text;
    if (scope_names_.size() == kMostNames) return tree_.string("(other names)");
    return scope_names_.emplace(name, ScopeName{tree_.string(name)}).first->second.text;
}

void Recorder::add_marker(std::string_view name) noexcept {
    std::uint32_t text = 0;
    if_recorded([&] {
        const std::uint32_t known = scope_name(name);
        if (++file_.header().named_markers <= capture::kMostNamedMarkers) text = known;
    });
    if (text != 0) on_marker(capture::MarkerKind::named, text);
    if_recorded([&] { note_live(name); });
}

// Under the lock. Takes a snapshot of what is live, if one is due for this name; its cost is that of the end of a slice
// (Accounts::close_slice()).
void Recorder::note_live(std::string_view name) {
    const auto known = scope_names_.find(shortened(name));
    if (known == scope_names_.end()) return;  // one of the other names
    ScopeName& of = known->second;
    if (++of.moments < of.next_snapshot || live_snapshots_.size() == capture::kMostSnapshots) return;
    of.next_snapshot = of.moments + (of.moments < capture::kDenseSnapshots ? 1 : of.moments / 16);
    const std::uint64_t now = now_ns(), slice = accounts_.take_instant_slice(now);
    live_snapshots_.append({now, slice, of.moments, accounts_.begin_interval(), of.text});
    ++interval_;
    request_attention();
}

// The end of an interval counts as a marker named after its length, so that growth shows in programs that set none.
void Recorder::note_interval(std::uint64_t now) noexcept {
    const std::uint64_t interval = interval_ns_.load(std::memory_order_relaxed);
    if (interval == 0 || now < next_interval_ns_) return;
    next_interval_ns_ = (now / interval + 1) * interval;
    char name[40];
    ::snprintf(name, sizeof name, "every %g s", static_cast<double>(interval) / 1e9);
    if_recorded([&] {
        scope_name(name);
        note_live(name);
    });
}

// Under the lock. Phases and the heap's meters read and reset the same peaks: each keeps what the other read.
void Recorder::raise_heap_peaks() noexcept {
    const bool was_read = accounts_.is_peak_read();
    const Accounts::HeapPeak peak = accounts_.read_and_reset_peak();
    set_plain_epoch();
    if (!was_read) {
        unread_ = {};
        return;
    }
    scopes_.raise_peaks(peak.total_bytes);
    unread_.total_bytes = std::max(unread_.total_bytes, peak.total_bytes);
    unread_.python_bytes = std::max(unread_.python_bytes, peak.python_bytes);
}

std::uint64_t Recorder::begin_scope(std::string_view name) noexcept {
    std::uint64_t scope = 0;
    if_recorded([&] {
        raise_heap_peaks();
        const auto thread = static_cast<std::uint32_t>(platform::thread_number());
        const capture::ScopeRecord record{
            scope_name(name), static_cast<std::uint32_t>(pid_), thread, 0, now_ns(), 0, -1, -1, -1, 0, 0, 0};
        scope = scopes_.begin(record, file_.header().live_bytes);
    });
    return scope;
}

void Recorder::end_scope(std::uint64_t scope) noexcept {
    if (scope == 0) return;
    if_recorded([&] {
        raise_heap_peaks();
        const std::uint32_t name = scopes_.end(scope, now_ns(), file_.header().live_bytes);
        if (!scopes_.are_open() && !is_heap_read_) stop_reading_accounts();
        if (name != 0) note_live(tree_.text_of(name));
    });
}

// Under the lock, at the end of the recording.
void Recorder::end_open_scopes() noexcept {
    if (!scopes_.are_open()) return;
    raise_heap_peaks();
    scopes_.end_all(file_.header().ended_ns, file_.header().live_bytes);
}

}  // namespace hiwater
