// The last stores of a process that exits or executes another program, and what the child of a fork forgets.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/raw_calls.h"
#include "base/signals_blocked.h"
#include "base/process.h"
#include "session/children.h"
#include "session/fatal_signals.h"
#include "session/recorder.h"

namespace hiwater {

using capture::State;

void Recorder::store_exit(const Exit& exit) noexcept {
    capture::Header& h = file_.header();
    h.exit_code = exit.code;
    h.ended_by = static_cast<std::uint32_t>(exit.by);
    h.end_signal = static_cast<std::uint64_t>(exit.signal);
    h.heartbeat_ns = h.ended_ns = now_ns();
    note_refused_children();
}

bool Recorder::note_exit(const Exit& exit) noexcept {
    // Checked first: the child of a vfork runs in our memory, and must change nothing there.
    if (pid_ != ::getpid()) return false;
    // An exec during exit() may fail, and must not undo what exit() stored.
    const auto may_note = [&] {
        return file_.is_open() && (exit.code != -1 || exit.signal != 0 || file_.header().ended_ns == 0);
    };
    if (is_inside()) {
        // The process ends, or executes another program, during an event of its own thread, which may hold the lock.
        // The state stays `recording`, as the sums may lack the rest of that event.
        if (!may_note()) return false;
        store_exit(exit);
        return true;
    }
    BusyGuard busy;
    Hold hold(lock_);
    if (!may_note()) return false;
    process::Resident resident;
    capture::Header& h = file_.header();
    if (process::read_status(&resident)) note_resident(resident.now_bytes, resident.peak_bytes);
    count_own_pages();
    if (scopes_.are_open()) raise_heap_peaks();  // they stay open: an exec may fail
    store_counts();
    store_exit(exit);
    const State state = g_switches.mode.load(std::memory_order_relaxed) == Mode::on ? State::ended : State::failed;
    __atomic_store_n(&h.state, static_cast<std::uint32_t>(state), __ATOMIC_RELEASE);  // who sees it sees the rest
    file_.write_back();
    return true;
}

void Recorder::withdraw_exit() noexcept {
    if (!file_.is_open()) return;
    // Of its own process alone, and no other thread writes these: an event that a signal's handler interrupted may have
    // the lock.
    capture::Header& h = file_.header();
    h.exit_code = -1;
    h.ended_by = 0;
    h.ended_ns = 0;
    h.state = static_cast<std::uint32_t>(State::recording);
}

namespace {

// Makes an object anew over one whose pages are gone: its destructor would touch them.
template <typename Object, typename... Parts>
void begin_anew(Object& object, Parts&... parts) noexcept {
    ::new (static_cast<void*>(&object)) Object(parts...);
}

// The same contents at the same place, and nobody else's.
void make_private(const OwnRanges::Range& range) noexcept {
    const std::size_t bytes = range.end - range.start;
    auto* const at = reinterpret_cast<void*>(range.start);
    void* const copy =
        raw::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy != MAP_FAILED) {
        ::memcpy(copy, at, bytes);
        if (platform::move_to(at, copy, bytes, bytes) != MAP_FAILED) return;
    }
    raw::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

}  // namespace

// Other threads of the parent may have been anywhere in the recorder when this process was made, so its tables are not
// read.
void Recorder::forget_tables_of_parent() noexcept {
    // Many ranges lie side by side: one call unmaps those that are next to each other.
    std::uintptr_t start = 0, end = 0;
    const auto unmap = [&] {
        if (start != end) raw::munmap(reinterpret_cast<void*>(start), end - start);
    };
    own_ranges.each([&](const OwnRanges::Range& range) {
        if (range.use == Use::kept || range.use == Use::wiped) return;
        capture::file_guard::remove(reinterpret_cast<void*>(range.start));
        own_ranges.remove(reinterpret_cast<void*>(range.start));
        own_limit.remove(range.end - range.start);
        if (range.end == start) {
            start = range.start;
        } else if (range.start == end) {
            end = range.end;
        } else {
            unmap();
            start = range.start, end = range.end;
        }
    });
    unmap();
    spare_room.drop();
    file_.forget_in_child();
    begin_anew(mappings_, accounts_, tree_);
    codes_.forget_in_child();
    native_frames_.forget_in_child();
    begin_anew(names_, tree_);
    begin_anew(devices_, tree_);
    const auto anew = [](auto&... tables) { (begin_anew(tables), ...); };
    anew(tree_, accounts_, timeline_, facts_, markers_, residency_, large_blocks_, pressure_, relatives_);
    live_.empty();
    samples_.forget_in_child();
}

void Recorder::record_child(std::int64_t inherited_bytes, const process::Moment& began) noexcept {
    BusyGuard busy;
    int error = ENOMEM;
    try {
        const StartOptions* const options = children.begin_in_fork();
        if (options == nullptr) return children.note_refused(errno);
        error = start(*options, &began);
    } catch (const capture::NoRoom& full) {
        error = full.error;
    } catch (const std::exception&) {
    }
    if (error != 0) return children.note_refused(error);
    fatal_signals::begin();
    file_.header().inherited_bytes = static_cast<std::uint64_t>(inherited_bytes);
    sampler::start_later();
}

void Recorder::become_unrecorded_child() noexcept {
    const bool is_amid_event = is_inside();
    PendingSignals::forget_in_child();
    lock_.reset();
    pool_lock_.reset();
    peak_lock_.reset();
    live_.forget_growth();
    set_mode(Mode::off);
    for (Thread* t = all_; t != nullptr; t = t->next_of_all) {
        if (t == tls.thread) continue;
        t->ticket.active.store(0, std::memory_order_relaxed);  // it is not here: nobody may wait for it
        t->id = 0;
    }
    if (is_amid_event) {
        // A signal handler forked. The event that it interrupted continues here, too, when the handler returns.
        own_ranges.each([](const OwnRanges::Range& range) {
            if (range.use != Use::shared) return;
            make_private(range);
            capture::file_guard::remove(reinterpret_cast<void*>(range.start));
        });
    } else {
        forget_tables_of_parent();
    }
    capture::file_guard::end_in_child();
    fatal_signals::end_in_child();
}

}  // namespace hiwater
