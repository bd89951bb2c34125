// Starting and ending a recording.
#include "session/recorder.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/own_file.h"
#include "base/process.h"
#include "session/children.h"
#include "session/fatal_signals.h"

namespace hiwater {

using capture::State;

constinit RecorderRoom g_recorder_room{};

void Recorder::make() noexcept {
    // Never destroyed: hooks may be called until the last instruction of the process.
    static bool is_made = false;
    if (std::exchange(is_made, true)) return;
    auto* const one = new (g_recorder_room.bytes) Recorder();
    one->lock_.merge_accounts_with(one);
}

std::uint64_t Recorder::now_ns() const noexcept { return process::monotonic_ns() - started_ns_; }

void Recorder::write_facts(const StartOptions& options) {
    facts_.attach(file_, capture::Table::facts);
    markers_.attach(file_, capture::Table::markers);
    live_snapshots_.attach(file_, capture::Table::live_snapshots);
    holder_searches_.attach(file_, capture::Table::holder_searches);
    holder_paths_.attach(file_, capture::Table::holder_paths);
    holder_blocks_.attach(file_, capture::Table::holder_blocks);
    holder_references_.attach(file_, capture::Table::holder_references);
    timeline_.attach(file_, capture::Table::timeline);
    residency_.attach(file_, capture::Table::residency);
    large_blocks_.attach(file_, capture::Table::large_blocks);
    pressure_.attach(file_, capture::Table::pressure);
    relatives_.attach(file_, capture::Table::relatives);
    devices_.attach(file_);
    scopes_.attach(file_);
    for (const auto& [key, value] : options.facts) append_fact(key, value);
    for (const char* reason : {kNoMemory, kCannotGrow, kTruncated}) tree_.string(reason);
}

void Recorder::append_fact(const std::string& name, const std::string& value) {
    facts_.append({tree_.string(name.substr(0, 1000)), tree_.string(value.substr(0, 60000))});
}

void Recorder::note_fact(const std::string& name, const std::string& value) noexcept {
    if_recorded([&] { append_fact(name, value); });
}

int Recorder::start(const StartOptions& options, const process::Moment* began) {
    // The child of a fork that called no handlers has its parent's recorder still, switched off.
    if (file_.is_open() && pid_ != ::getpid()) {
        sampler::forget_in_child();
        become_unrecorded_child();
    }
    BusyGuard busy;
    const process::Stat stat = process::read_stat();
    // With other threads there, the sampler's thread does what has to wait for them.
    const bool is_alone = stat.threads == 1;
    if (is_alone || options.only_counters) lock_.allow_bias();
    may_enlarge_descriptors(is_alone);
    Hold hold(lock_);
    if (file_.is_open())
        forget_tables_of_parent();  // made by a fork in a signal's handler, this process could not do it then
    struct Guard {
        bool is_kept = false;
        ~Guard() {
            if (!is_kept) capture::file_guard::end();
        }
    } guard;
    if (!options.only_counters) capture::file_guard::begin([] { recorder().give_up(kTruncated); }, fatal_signals::note);
    last_peak_ = {};
    last_program_peak_ = freed_arena_bytes_ = peak_before_freed_arenas_ = 0;
    if (int error = options.only_counters ? file_.create_in_memory() : file_.create(options.path.c_str(), options.mode))
        return error;
    only_counters_ = options.only_counters;
    residency_snapshots_ = options.residency_snapshots;
    if (!live_.init()) {
        file_.discard();
        return ENOMEM;
    }
    if (options.sample_bytes != 0) samples_.init();
    capture::Header& h = file_.header();
    try {
        codes_.begin(options);
        limits_.begin(options.cgroup_usage, options.cgroup_limits);
        last_words_.begin(options.last_words, options.mode);
        tree_.attach(file_);
        accounts_.attach(file_);
        native_frames_.begin(file_, options.native_frames);
        write_facts(options);
    } catch (const capture::NoRoom& room) {
        file_.discard();
        return room.error;
    } catch (...) {
        file_.discard();
        throw;
    }
    {
        UninterruptedHold pool(pool_lock_);
        names_.forget();
        // A fork amid an event of its own may have left something in the child.
        for (Thread* t = all_; t != nullptr; t = t->next_of_all)
            if (t->accounts.events() != 0) t->accounts.clear();
    }
    shared_events_ = 0;
    lost_ = unknown_frees_ = 0;
    fail_reason_[0] = '\0';
    ended_by_ = capture::EndedBy::unknown;
    if (!only_counters_) last_ = {};
    last_point_ns_ = next_write_back_ns_ = last_refused_slice_ns_ = refusals_ = last_pressure_ns_ = next_totals_ns_ = 0;
    until_slice_ = until_count_ = {};
    falls_left_ = kMostFalls;
    rises_left_ = kMostRises;
    shared_steps_left_ = kMostSteps;
    was_step_ = false;
    collections_ = hw_full_collections();
    main_state_ = process::is_main_thread() ? hw_own_state() : hw_state{};
    collection_markers_ = 0;
    next_interval_ns_ = options.interval_ns;
    interval_ns_.store(options.interval_ns, std::memory_order_relaxed);
    scope_names_.clear();
    pid_ = ::getpid();
    h.pid = static_cast<std::uint32_t>(pid_);
    h.process_start_ticks = stat.start_ticks;
    if (boot_id_[0] == '\0') {  // both are the same in the child of a fork
        process::read_boot_id(boot_id_);
        resident_error_bytes_ = process::peak_error_bytes();
    }
    ::memcpy(h.boot_id, boot_id_, sizeof h.boot_id);
    const process::Moment now = began != nullptr ? *began : process::Moment();
    h.started_unix_ns = now.wall_ns;
    h.started_ns = started_ns_ = now.monotonic_ns;
    process::Resident resident;
    h.resident_exact = !only_counters_ && process::reset_peak() ? 1 : 0;
    maximum_at_start_ = process::maximum_resident();
    if (process::read_status(&resident))
        h.resident_start_bytes = h.resident_last_bytes = h.resident_peak_bytes = resident.now_bytes;
    h.resident_error_bytes = resident_error_bytes_;
    code_file_bytes_ = options.code_file_bytes;
    code_anonymous_bytes_ = options.code_anonymous_bytes;
    library_bytes_ = std::min(code_file_bytes_, OwnPagesCount().library_bytes());
    give_back_ = GiveBack{};
    program_peak_.begin(h.resident_peak_bytes, put_pages);
    h.state = static_cast<std::uint32_t>(State::recording);
    ::memcpy(h.magic, capture::kMagic, sizeof h.magic);
    if (!only_counters_) {
        if (int error = file_.publish()) {
            file_.discard();
            forget_tables();
            return error;
        }
        path_ = file_.path();
    }
    spare_room.keep();
    ++session_;
    set_up_sampling(options);
    h.sample_bytes = sample_bytes_;
    request_attention();
    set_mode(Mode::on);
    guard.is_kept = true;
    return 0;
}

void Recorder::store_counts() noexcept {
    capture::Header& h = file_.header();
    h.lost_events = lost_.load(std::memory_order_relaxed);
    h.unknown_frees = unknown_frees_.load(std::memory_order_relaxed);
}

// Under the lock: close() closes the capture, and everything that spoke of it is forgotten.
template <typename Close>
void Recorder::let_go(const Close& close, bool is_leaving) noexcept {
    is_leaving ? fatal_signals::leave() : fatal_signals::end();
    accounts_.read_in_pieces(nullptr);
    close();
    if (is_leaving) return;
    capture::file_guard::end();
    forget_tables();
}

void Recorder::stop(int exit_code, bool carry, bool heap_has_headers, bool is_leaving) {
    BusyGuard busy;
    process::Resident resident;
    const bool known = process::read_status(&resident);
    Hold hold(lock_);
    if (!file_.is_open()) return;
    if (!only_counters_) file_.find_truncation();  // which ends the recording, with its reason
    const bool failed = g_switches.mode.load(std::memory_order_relaxed) != Mode::on;
    set_mode(Mode::off);
    capture::Header& h = file_.header();
    carried_ = carry ? heap_now() : Heap{};
    if (only_counters_) return let_go([&] { file_.finish(State::ended); });
    if (known) note_resident(resident.now_bytes, resident.peak_bytes);
    h.heartbeat_ns = h.ended_ns = now_ns();
    h.exit_code = exit_code;
    h.ended_by = static_cast<std::uint32_t>(ended_by_);
    if (sampled()) note_exact_totals();
    note_refused_children();
    h.lost_events = lost_.load(std::memory_order_relaxed);
    capture::InPieces pieces(file_);
    accounts_.read_in_pieces(&pieces);
    if (!failed && leave_row_alone(heap_has_headers, is_leaving)) return;
    end_open_scopes();
    count_own_pages();
    try {
        if (fail_reason_[0] != '\0') h.stop_reason = tree_.string(fail_reason_);
        if (!failed) show_last_names();
        if (failed && ::strcmp(fail_reason_, kJumped) == 0) accounts_.recompute_totals();
        if (!failed && heap_has_headers) forget_freed();
        if (!failed) accounts_.close_slice(h.ended_ns);
    } catch (const std::exception&) {
        lost_ += 1;  // the open slice still holds its figures; only its entry in the list of slices is missing
    } catch (const capture::NoRoom&) {
        lost_ += 1;
    }
    store_counts();
    forget_how_to_record();
    try {
        last_ = {};
        last_ = summary_so_far();
    } catch (const std::bad_alloc&) {
        // The capture must be closed all the same; a report finds what this summary lacks.
    }
    const State state = failed ? State::failed : State::ended;
    const Children::Ended ended = figures_at_end(state);
    capture::CaptureFile::Ending ending{};
    let_go([&] { ending = file_.finish(state); }, is_leaving);
    last_.path = path_ = ending.path.text;
    last_.fate = in_words(ending.fate);
    last_.is_lost = ending.fate == capture::CaptureFile::Fate::lost || ending.fate == capture::CaptureFile::Fate::cut;
    if (children.is_child()) children.note_ended(ended, path_.c_str());
    if (ending.error != 0)
        last_.stop_reason = std::string("the capture could not be written: ") + ::strerror(ending.error);
}

Children::Ended Recorder::figures_at_end(State state) noexcept {
    merge_thread_accounts();
    const capture::Header& h = file_.header();
    Children::Ended ended{h, {accounts_.peak_bytes(), accounts_.peak_blocks()}, {}};
    if (sampled())
        ended.total = {static_cast<std::int64_t>(h.exact_total_bytes), static_cast<std::int64_t>(h.exact_total_blocks)};
    else if (children.is_child())
        ended.total = accounts_.total();
    ended.header.state = static_cast<std::uint32_t>(state);
    return ended;
}

bool Recorder::is_row_enough() const noexcept {
    return children.is_child() && children.is_row_enough(accounts_.peak_bytes());
}

// Under the lock. The capture of a child that held little, where the run has many, is not completed: a row in the index
// is all that stays.
bool Recorder::leave_row_alone(bool heap_has_headers, bool is_leaving) noexcept {
    if (file_.is_truncated() || !is_row_enough()) return false;
    if (heap_has_headers) if_there_is_room([&] { forget_freed(); });
    children.note_ended(figures_at_end(State::ended), "");
    last_ = {};
    last_.path = path_;
    let_go([&] { file_.discard(); }, is_leaving);
    return true;
}

void Recorder::forget_tables() noexcept {
    spare_room.drop();
    forget_how_to_record();
    mappings_.reset();
    codes_.reset();
    native_frames_.forget();
}

// What the capture says stays readable. The largest tables go before the last figures are made, which take memory
// themselves.
void Recorder::forget_how_to_record() noexcept {
    live_.empty();
    samples_.empty();
    tree_.forget_everything();
    accounts_.forget_everything();
}

int Recorder::snapshot(const char* path) noexcept {
    BusyGuard busy;
    capture::CaptureCopy copy;
    if (int error = begin_copy(&copy, path)) return error;
    {
        Hold hold(lock_);
        if (!file_.is_open()) return ENOENT;
        if_there_is_room([&] { show_last_names(); });
        file_.header().heartbeat_ns = now_ns();
        if (int error = copy.fill(file_, file_.header().heartbeat_ns)) return error;
    }
    return copy.end();
}

// Makes the file of a copy, while the recording goes on.
int Recorder::begin_copy(capture::CaptureCopy* copy, const char* path) noexcept {
    mode_t mode = 0;
    std::uint64_t bytes = 0;
    {
        Hold hold(lock_);
        if (!file_.is_open()) return ENOENT;
        mode = file_.mode();
        bytes = file_.used_bytes();
    }
    return copy->begin(path, mode, bytes);
}

bool Recorder::is_kept_in_memory() noexcept {
    BusyGuard busy;
    Hold hold(lock_, ticket());
    return file_.is_open() && file_.is_kept_in_memory();
}

}  // namespace hiwater
