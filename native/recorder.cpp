// Starting, ending and asking about a recording.
#include "recorder.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/uncancelled.h"
#include "process.h"

namespace hiwater {

using capture::State;

Recorder* Recorder::g_recorder_ = nullptr;

void Recorder::make_instance() noexcept {
    // Never destroyed: hooks may be called until the last instruction of the process.
    alignas(Recorder) static unsigned char room[sizeof(Recorder)];
    if (g_recorder_ != nullptr) return;
    g_recorder_ = new (room) Recorder();
    g_recorder_->lock_.keep_books_with(g_recorder_);
}

std::uint64_t Recorder::now_ns() const noexcept { return process::monotonic_ns() - started_ns_; }

void Recorder::write_facts(const StartOptions& options) {
    facts_.attach(file_, capture::Table::facts);
    marks_.attach(file_, capture::Table::marks);
    timeline_.attach(file_, capture::Table::timeline);
    residency_.attach(file_, capture::Table::residency);
    large_blocks_.attach(file_, capture::Table::large_blocks);
    pressure_.attach(file_, capture::Table::pressure);
    devices_.attach(file_, capture::Table::devices);
    device_samples_.attach(file_, capture::Table::device_samples);
    device_terms_.attach(file_, capture::Table::device_terms);
    last_samples_.reset();
    for (const auto& [key, value] : options.facts) append_fact(key, value);
    for (const char* reason : {kNoMemory, kCannotGrow, kCut}) tree_.string(reason);
}

void Recorder::append_fact(const std::string& name, const std::string& value) {
    facts_.append({tree_.string(name.substr(0, 1000)), tree_.string(value.substr(0, 60000))});
}

void Recorder::note_fact(const std::string& name, const std::string& value) noexcept {
    if (!is_on() || only_counters_) return;
    if_there_is_room([&] {
        Hold hold(lock_);
        append_fact(name, value);
    });
}

int Recorder::start(const StartOptions& options) {
    // The child of a fork that called no handlers has its parent's recorder still, switched off.
    if (file_.is_open() && pid_ != ::getpid()) {
        sampler::forget_in_child();
        become_unrecorded_child();
    }
    BusyGuard busy;
    lock_.allow_leaning();
    Hold hold(lock_);
    if (file_.is_open()) forget_tables_of_parent();  // made by a fork in a signal's handler, this process could not do it then
    struct Guard {
        bool is_kept = false;
        ~Guard() {
            if (!is_kept) capture::file_guard::end();
        }
    } guard;
    if (!options.only_counters) capture::file_guard::begin([] { instance().give_up(kCut); });
    last_peak_ = {};
    last_resident_peak_ = 0;
    if (int error = options.only_counters ? file_.create_in_memory() : file_.create(options.path.c_str(), options.mode))
        return error;
    only_counters_ = options.only_counters;
    if (!live_.init()) {
        file_.discard();
        return ENOMEM;
    }
    if (options.sample_bytes != 0) samples_.init();
    capture::Header& h = file_.header();
    try {
        code_class_.reset();
        positions_.reset();
        positions_.resize(kPositions);
        internal_prefix_ = options.internal_prefix;
        own_script_ = options.own_script;
        library_prefixes_ = options.library_prefixes;
        cgroup_usage_ = options.cgroup_usage;
        cgroup_limits_ = options.cgroup_limits;
        tree_.attach(file_);
        accounts_.attach(file_);
        write_facts(options);
    } catch (const capture::NoRoom& room) {
        file_.discard();
        return room.error;
    } catch (...) {
        file_.discard();
        throw;
    }
    forget_names();
    shared_events_ = 0;
    lost_ = 0;
    fail_reason_[0] = '\0';
    if (!only_counters_) last_ = {};
    last_point_ns_ = last_close_ns_ = next_write_back_ns_ = last_refused_slice_ns_ = refusals_ = last_pressure_ns_ =
        last_available_ns_ = 0;
    last_available_bytes_ = -1;
    collections_ = hw_full_collections();
    collection_marks_ = 0;
    pid_ = ::getpid();
    h.pid = static_cast<std::uint32_t>(pid_);
    h.process_start_ticks = process::start_ticks(pid_);
    process::read_boot_id(h.boot_id);
    h.started_unix_ns = process::wall_ns();
    h.started_ns = started_ns_ = process::monotonic_ns();
    process::Resident resident;
    h.resident_exact = !only_counters_ && process::reset_peak() ? 1 : 0;
    if (process::read_status(&resident))
        h.resident_start_bytes = h.resident_last_bytes = h.resident_peak_bytes = resident.now_bytes;
    h.resident_error_bytes = process::peak_error_bytes();
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
    set_up_drawing(options);
    h.sample_bytes = sample_bytes_;
    epoch_.fetch_add(1, std::memory_order_relaxed);
    set_mode(Mode::on);
    guard.is_kept = true;
    return 0;
}

// The sampler's to call while it runs, then the last one's to leave.
void Recorder::note_resident_peak(std::int64_t peak_bytes) noexcept {
    capture::Header& h = file_.header();
    if (peak_bytes > h.resident_peak_bytes) h.resident_peak_bytes = peak_bytes;
    if (peak_bytes > last_resident_peak_) last_resident_peak_ = peak_bytes;
}

void Recorder::hear_of_resident_peak(std::int64_t peak_bytes) noexcept {
    if (!is_on() || only_counters_) return;
    BusyGuard busy;
    Hold hold(lock_);
    if (file_.is_open()) note_resident_peak(peak_bytes);
}

void Recorder::stop(int exit_code, bool carry, bool heap_has_marks) {
    BusyGuard busy;
    process::Resident resident;
    const bool known = process::read_status(&resident);
    Hold hold(lock_);
    if (!file_.is_open()) return;
    const bool failed = g_switches.mode.load(std::memory_order_relaxed) != Mode::on;
    set_mode(Mode::off);
    capture::Header& h = file_.header();
    carried_ = carry ? heap_now() : Heap{};
    if (only_counters_) {
        let_go(State::ended);
        return;
    }
    file_.find_cut();
    if (known) {
        h.resident_last_bytes = resident.now_bytes;
        const std::int64_t peak = h.resident_exact != 0 ? std::max(resident.peak_bytes, resident.now_bytes) : resident.now_bytes;
        note_resident_peak(peak);
    }
    h.heartbeat_ns = h.ended_ns = now_ns();
    h.exit_code = exit_code;
    if (sampled()) note_exact_totals();
    h.own_bytes = live_.resident_bytes() + samples_.own_bytes() + file_.resident_bytes();
    try {
        if (fail_reason_[0] != '\0') h.stop_reason = tree_.string(fail_reason_);
        if (!failed) show_last_names();
        if (failed && ::strcmp(fail_reason_, kJumped) == 0) accounts_.add_up();
        if (!failed && heap_has_marks) forget_freed();
        if (!failed) accounts_.close_slice(h.ended_ns);
    } catch (const std::exception&) {
        lost_ += 1;  // the open slice still holds its figures; only its entry in the list of slices is missing
    } catch (const capture::NoRoom&) {
        lost_ += 1;
    }
    h.lost_events = lost_.load(std::memory_order_relaxed);
    try {
        last_ = {};
        last_ = summary_so_far();
    } catch (const std::bad_alloc&) {
        // The capture must be closed all the same; a report finds what this summary lacks.
    }
    const capture::CaptureFile::Ending ending = let_go(failed ? State::failed : State::ended);
    last_.path = path_ = ending.path.text;
    last_.fate = in_words(ending.fate);
    last_.is_lost = ending.fate == capture::CaptureFile::Fate::lost || ending.fate == capture::CaptureFile::Fate::cut;
    if (ending.error != 0) last_.stop_reason = std::string("the capture could not be written: ") + ::strerror(ending.error);
}

// Under the lock: closes the capture and forgets everything that spoke of it.
capture::CaptureFile::Ending Recorder::let_go(State state) noexcept {
    const capture::CaptureFile::Ending ending = file_.finish(state);
    capture::file_guard::end();
    forget_tables();
    return ending;
}

void Recorder::forget_tables() noexcept {
    spare_room.drop();
    live_.empty();
    samples_.empty();
    mappings_.reset();
    made_objects_.reset();
    shared_pages_.reset();
    tree_.forget_everything();
    accounts_.forget_everything();
    code_class_.reset();
    positions_.reset();
}

// The line of the program's own code whose stacks held most at the peak. A stack belongs to its innermost line that is not a
// library's; a stack that has none, to its innermost line.
TopLine Recorder::top_line() {
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> bytes_of_line;  // (code, line)
    std::vector<bool> is_own(tree_.code_count(), false);
    for (std::uint32_t code = 1; code < is_own.size(); ++code) {
        const auto kind = static_cast<capture::CodeKind>(tree_.code_record(code).kind);
        is_own[code] = kind == capture::CodeKind::python && (class_of(code) & (kCodeLibrary | kCodeInternal)) == 0;
    }
    std::vector<std::uint32_t> owner(tree_.node_count(), 0);  // innermost own node at or above
    for (std::uint32_t id = 1; id < owner.size(); ++id) {
        const capture::NodeRecord& n = tree_.node(id);
        if (n.code >= is_own.size() || n.parent >= id) return {};  // somebody else wrote to the file
        owner[id] = is_own[n.code] ? id : owner[n.parent];
    }
    std::uint32_t top_node = 0;
    std::int64_t top_bytes = 0;
    for (std::uint32_t id = 1; id < accounts_.size(); ++id) {
        const capture::LedgerRecord& ledger = accounts_.record(id);
        const std::int64_t bytes = accounts_.at_peak(id).bytes;
        if (bytes <= 0 || !Accounts::counted(ledger.kind) || ledger.node >= owner.size()) continue;
        const std::uint32_t node = owner[ledger.node] != 0 ? owner[ledger.node] : ledger.node;
        const std::int64_t sum = bytes_of_line[{tree_.node(node).code, tree_.node(node).line}] += bytes;
        if (sum <= top_bytes) continue;
        top_node = node;
        top_bytes = sum;
    }
    if (top_node == 0) return {};
    const capture::CodeRecord& code = tree_.code_record(tree_.node(top_node).code);
    return {std::string(tree_.text_of(code.file)), std::string(tree_.text_of(code.function)), tree_.node(top_node).line, top_bytes};
}

Summary Recorder::summary() {
    BusyGuard busy;
    Hold hold(lock_);
    if (!file_.is_open() || only_counters_) return last_;  // counting has no summary of its own
    return summary_so_far();
}

// Under the lock, with the capture open.
Summary Recorder::summary_so_far() {
    const capture::Header& h = file_.header();
    Summary s;
    s.path = path_;
    s.stop_reason = fail_reason_;
    s.lost_events = lost_.load(std::memory_order_relaxed);
    s.sample_bytes = sample_bytes_;
    if (file_.is_cut()) {
        s.peak_bytes = last_peak_.bytes;
        s.peak_blocks = last_peak_.blocks;
        s.resident_peak_bytes = last_resident_peak_;
        return s;
    }
    s.peak_bytes = accounts_.peak_bytes();
    s.peak_blocks = accounts_.peak_blocks();
    s.live_bytes = h.live_bytes;
    s.resident_peak_bytes = h.resident_peak_bytes;
    s.resident_error_bytes = h.resident_error_bytes;
    s.resident_exact = h.resident_exact != 0;
    s.standard_error_bytes = standard_error_of_peak();
    s.top = top_line();
    return s;
}

int Recorder::snapshot(const char* path) {
    BusyGuard busy;
    Hold hold(lock_);
    if (!file_.is_open()) return ENOENT;
    if_there_is_room([&] { show_last_names(); });
    file_.header().heartbeat_ns = now_ns();
    return file_.copy_to(path);
}

bool Recorder::is_kept_in_memory() noexcept {
    BusyGuard busy;
    Hold hold(lock_, ticket());
    return file_.is_open() && file_.is_kept_in_memory();
}

std::map<std::string, std::int64_t> Recorder::counters() {
    BusyGuard busy;
    Hold hold(lock_);
    std::map<std::string, std::int64_t> out{{"recording", recording() ? 1 : 0}};
    if (!file_.is_open()) return out;
    const capture::Header& h = file_.header();
    std::int64_t total_bytes = 0, total_blocks = 0;
    for (std::uint32_t id = 1; id < accounts_.size(); ++id) {
        if (!Accounts::counted(accounts_.record(id).kind)) continue;
        total_bytes += static_cast<std::int64_t>(accounts_.record(id).total_bytes);
        total_blocks += static_cast<std::int64_t>(accounts_.record(id).total_blocks);
    }
    out["live_bytes"] = h.live_bytes;
    out["live_blocks"] = h.live_blocks;
    out["peak_bytes"] = accounts_.peak_bytes();
    out["total_bytes"] = total_bytes;
    out["total_blocks"] = total_blocks;
    out["python_live_bytes"] = h.kind_live_bytes[0];
    out["native_live_bytes"] = h.kind_live_bytes[1];
    out["mapping_live_bytes"] = h.kind_live_bytes[2];
    out["lost_events"] = static_cast<std::int64_t>(lost_.load(std::memory_order_relaxed));
    out["shared_events"] = static_cast<std::int64_t>(shared_events_);
    out["nodes"] = static_cast<std::int64_t>(tree_.node_count());
    out["codes"] = static_cast<std::int64_t>(tree_.code_count());
    out["ledgers"] = accounts_.size();
    out["mappings"] = static_cast<std::int64_t>(mappings_.size());
    out["own_table_bytes"] =
        static_cast<std::int64_t>(live_.resident_bytes() + samples_.own_bytes() + tree_.own_bytes() + accounts_.own_bytes());
    out["capture_bytes"] = static_cast<std::int64_t>(file_.mapped_bytes());
    return out;
}

std::string Recorder::self_check() {
    BusyGuard busy;
    Hold hold(lock_);
    if (!file_.is_open()) return {};
    if (!tree_.is_consistent()) return "the call tree is not consistent";
    if (!live_.is_consistent()) return "the table of live blocks is not consistent";
    if (!mappings_.is_consistent()) return "the mappings overlap";
    if (!samples_.is_consistent()) return "the table of drawn blocks is not consistent";
    std::map<std::uint32_t, std::pair<std::int64_t, std::int64_t>> sums;
    const auto add = [&sums](std::uint32_t ledger, std::uint64_t bytes, std::int64_t blocks) {
        sums[ledger].first += static_cast<std::int64_t>(bytes);
        sums[ledger].second += blocks;
    };
    live_.each([&](std::uintptr_t, const Block& block) { add(block.ledger, block.bytes, 1); });
    samples_.each([&](std::uintptr_t, const Block& block) {
        const sampling::Weight weight = weight_of(block.bytes);
        add(block.ledger, static_cast<std::uint64_t>(weight.bytes), weight.blocks);
    });
    mappings_.each([&](std::uintptr_t start, std::uintptr_t end, const Piece& piece) {
        if (!shows_pages(piece)) add(piece.ledger, end - start, 1);
    });
    shared_pages_.each([&](SharedPlace start, SharedPlace end, std::uint32_t ledger) { add(ledger, (end - start) * kPage, 1); });
    for (std::uint32_t id = 1; id < accounts_.size(); ++id) {
        const capture::LedgerRecord& l = accounts_.record(id);
        const auto kind = static_cast<capture::Kind>(l.kind);
        if (kind == capture::Kind::device) continue;  // not blocks of this process's tables
        if (sums[id].first != l.live_bytes || sums[id].second != l.live_blocks)
            return "ledger " + std::to_string(id) + " says " + std::to_string(l.live_bytes) + " bytes in " +
                   std::to_string(l.live_blocks) + " blocks, the live blocks " + std::to_string(sums[id].first) + " in " +
                   std::to_string(sums[id].second);
    }
    if (!accounts_.is_consistent()) return "the ledgers do not add up to the totals";
    return {};
}

// --- the heap's meters ---------------------------------------------------------------------------------------------------------

Recorder::Heap Recorder::heap_now() noexcept {
    if (!file_.is_open()) return carried_;
    bring_books_together();
    const capture::Header& h = file_.header();
    const auto live = [&h](capture::Kind kind) { return h.kind_live_bytes[static_cast<std::uint32_t>(kind)]; };
    return {carried_.live_bytes + h.live_bytes,
            carried_.live_blocks + h.live_blocks,
            carried_.python_bytes + live(capture::Kind::python),
            carried_.native_bytes + live(capture::Kind::native),
            carried_.mapping_bytes + live(capture::Kind::mapping),
            carried_.shared_bytes + live(capture::Kind::shared)};
}

Accounts::Fold Recorder::heap_fold() noexcept {
    BusyGuard busy;
    Hold hold(lock_, ticket());
    if (!file_.is_open()) return {carried_.live_bytes, carried_.python_bytes};
    Accounts::Fold fold = accounts_.fold();
    fold.total_bytes += carried_.live_bytes;
    fold.python_bytes += carried_.python_bytes;
    return fold;
}

void Recorder::stop_folding() noexcept {
    BusyGuard busy;
    Hold hold(lock_, ticket());
    accounts_.stop_folding();
}

// --- the clockwork -----------------------------------------------------------------------------------------------------------

// Points are spaced by 1/2048 of the recording's age and slices by 1/64, so that their number grows with the logarithm of its length.
// Closing a slice goes over all ledgers while the program waits: it is to take a fiftieth of the time at most.
constexpr std::uint64_t kShortestPointNs = 1'000'000, kShortestSliceNs = 25'000'000, kSliceCostShare = 50;

// The sampler alone writes these fields and the timeline, and the figures it copies are single words: no lock, which would make the
// program's threads wait (the capture stays open while the sampler runs). But threads that share the lock keep figures to themselves:
// after a kill, what is missing is what they did since the last tick.
void Recorder::tick(std::uint64_t now, std::int64_t resident_bytes, std::int64_t kernel_mark_bytes) noexcept {
    BusyGuard busy;
    file_.find_cut();
    bring_books_together();
    capture::Header& h = file_.header();
    if (is_on()) last_peak_ = {accounts_.peak_bytes(), accounts_.peak_blocks()};
    __atomic_store_n(&h.heartbeat_ns, now, __ATOMIC_RELAXED);
    h.lost_events = lost_.load(std::memory_order_relaxed);
    if (sampled()) note_exact_totals();
    if (resident_bytes >= 0) h.resident_last_bytes = resident_bytes;
    write_back_when_due(now);
    note_resident_peak(h.resident_exact != 0 ? std::max(resident_bytes, kernel_mark_bytes) : resident_bytes);
    if (!is_on()) return;
    guarded([&] {
        if (now - last_point_ns_ >= std::max(kShortestPointNs, now / 2048) || timeline_.size() == 0) add_point(now, resident_bytes);
        const std::uint64_t spacing = std::max({kShortestSliceNs, now / 64, kSliceCostShare * last_close_ns_});
        const std::uint64_t opened = accounts_.epoch().slice_start_ns;
        if (now < opened || now - opened < spacing) return;
        Hold hold(lock_);
        if (!is_on()) return;
        spare_room.refill();
        // Asked again: since `now` was read a refused request may have closed slices of its own.
        const std::uint64_t begun = now_ns();
        accounts_.close_slice(begun);
        last_close_ns_ = now_ns() - begun;
    });
}

// For a capture that its file system cannot hold: a copy each second, or less often where a copy takes more than a hundredth of that.
void Recorder::write_back_when_due(std::uint64_t now) noexcept {
    constexpr std::uint64_t kSecond = 1'000'000'000;
    if (!file_.is_kept_in_memory() || now < next_write_back_ns_) return;
    Hold hold(lock_);
    file_.write_back();  // what fails now is tried again; the last one, at the stop, is told
    const std::uint64_t took = now_ns() - now;
    next_write_back_ns_ = now + std::max(kSecond, 100 * took);
}

void Recorder::add_point(std::uint64_t now, std::int64_t resident_bytes) {
    const capture::Header& h = file_.header();
    capture::TimelineRecord point{now, resident_bytes, {}};
    for (std::uint32_t k = 0; k < capture::kKinds; ++k)
        point.live_bytes[k] = __atomic_load_n(&h.kind_live_bytes[k], __ATOMIC_RELAXED);
    if (timeline_.needs_extent()) {
        Hold hold(lock_);  // extents are everybody's
        timeline_.append(point);
    } else {
        timeline_.append(point);
    }
    last_point_ns_ = now;
}

// For the sampler, and for who ends the recording when there is none any more.
void Recorder::note_collections(std::int64_t collections) noexcept {
    constexpr std::uint64_t kMostMarks = 10'000;
    if (!is_on() || only_counters_ || collections <= collections_ || collection_marks_ == kMostMarks) return;
    const std::int64_t before = collections_;
    collections_ = collections;
    ++collection_marks_;
    if_there_is_room([&] {
        Hold hold(lock_);  // refusals are marked by any thread
        marks_.append(
            {now_ns(), static_cast<std::uint64_t>(collections - before), static_cast<std::uint32_t>(capture::MarkKind::gc), 0});
    });
}

void Recorder::note_pressure(std::uint64_t now, std::int64_t address_space_bytes) noexcept {
    constexpr std::uint64_t kShortestNs = 10'000'000, kShortestRowNs = 20'000'000, kMachineNs = 100'000'000;
    if (!is_on() || (pressure_.size() != 0 && now - pressure_[pressure_.size() - 1].at_ns < kShortestNs)) return;
    if (last_available_ns_ == 0 || now - last_available_ns_ >= kMachineNs) {
        last_available_bytes_ = process::available_bytes();
        last_available_ns_ = now;
    }
    capture::PressureRecord row{now, address_space_bytes, own_limit.in_force(), -1, -1, last_available_bytes_};
    if (row.address_space_limit >= 0) row.address_space_bytes -= static_cast<std::int64_t>(own_limit.own_bytes());
    if (!cgroup_usage_.empty()) row.cgroup_bytes = process::read_number(cgroup_usage_.c_str());
    for (const std::string& path : cgroup_limits_) {
        const std::int64_t limit = process::read_number(path.c_str());
        if (limit >= 0 && (row.cgroup_limit < 0 || limit < row.cgroup_limit)) row.cgroup_limit = limit;
    }
    if_there_is_room([&] {
        const bool keep = pressure_.size() == 0 || now - last_pressure_ns_ >= std::max(kShortestRowNs, now / 512);
        if (!keep) {
            pressure_[pressure_.size() - 1] = row;
            return;
        }
        last_pressure_ns_ = now;
        if (!pressure_.needs_extent()) {
            pressure_.append(row);
            return;
        }
        Hold hold(lock_);  // extents are everybody's
        if (is_on()) pressure_.append(row);
    });
}

void Recorder::look_at_residency() noexcept {
    BusyGuard busy;
    if (!is_on() || only_counters_) return;
    residency::Breakdown found;
    const std::uint64_t at_ns = now_ns();
    if_there_is_room([&] {
        residency::Ranges mappings;
        known_mappings(&mappings);
        if (!residency::look(&found, &mappings)) return;
        Hold hold(lock_);
        if (is_on()) write_down(found, at_ns);
    });
}

void Recorder::known_mappings(residency::Ranges* out) {
    constexpr std::uintptr_t kWorthKnowing = 64 * 1024;
    Hold hold(lock_);
    mappings_.each([&](std::uintptr_t start, std::uintptr_t end, const Piece& piece) {
        const auto kind = static_cast<capture::Kind>(accounts_.record(piece.ledger).kind);
        const bool is_known = kind == capture::Kind::mapping || kind == capture::Kind::shared || kind == capture::Kind::attached;
        if (is_known && end - start >= kWorthKnowing) out->push_back({start, end});
    });
}

// Under the lock. The parts last: a reader takes a look for whole when it has all of them.
void Recorder::write_down(const residency::Breakdown& found, std::uint64_t at_ns) {
    constexpr std::size_t kMostBlocks = 16;
    for (std::size_t i = 0; i < std::min(kMostBlocks, found.large.size()); ++i) {
        const residency::LargeBlock& large = found.large[i];
        const Block block = sampled() ? samples_.look(large.block) : live_.look(large.block);
        const std::uint32_t ledger = large.from_malloc ? block.ledger : mappings_.piece_at(large.address).ledger;
        const std::uint32_t node = ledger == 0 ? 0 : accounts_.record(ledger).node;
        large_blocks_.append({at_ns, large.bytes, large.touched_bytes, node, large.from_malloc ? 1u : 0u});
    }
    for (std::size_t i = 0; i < residency::kParts; ++i) {
        const std::uint32_t part = tree_.string(residency::name_of(static_cast<residency::Part>(i)));
        residency_.append({at_ns, found.rows[i].resident_bytes, found.rows[i].untouched_bytes, part, 0});
    }
}

// A signal's handler ends the process, or puts another program in its place, in the midst of an event of its own thread, which may hold the
// lock. The state stays `recording`, as the sums may lack the rest of that event.
void Recorder::mark_exited_amid_event(int exit_code) noexcept {
    capture::Header& h = file_.header();
    h.exit_code = exit_code;
    h.heartbeat_ns = h.ended_ns = now_ns();
}

bool Recorder::mark_exited(int exit_code) noexcept {
    // Asked first: the child of a vfork runs in our memory, and must change nothing there.
    if (pid_ != ::getpid()) return false;
    // An exec during exit() may fail, and must not take back what exit() said.
    const auto is_to_mark = [&] { return file_.is_open() && (exit_code != -1 || file_.header().ended_ns == 0); };
    if (is_inside()) {
        if (!is_to_mark()) return false;
        mark_exited_amid_event(exit_code);
        return true;
    }
    BusyGuard busy;
    Uncancelled whole;
    Hold hold(lock_);
    if (!is_to_mark()) return false;
    process::Resident resident;
    capture::Header& h = file_.header();
    if (h.resident_exact != 0 && process::read_status(&resident))
        note_resident_peak(std::max(resident.peak_bytes, resident.now_bytes));
    h.lost_events = lost_.load(std::memory_order_relaxed);
    h.exit_code = exit_code;
    h.heartbeat_ns = h.ended_ns = now_ns();
    h.state =
        static_cast<std::uint32_t>(g_switches.mode.load(std::memory_order_relaxed) == Mode::on ? State::ended : State::failed);
    file_.write_back();
    return true;
}

void Recorder::unmark_exited() noexcept {
    if (!file_.is_open()) return;
    // Of its own process alone, and no other thread writes these: an event that a signal's handler interrupted may have the lock.
    capture::Header& h = file_.header();
    h.exit_code = -1;
    h.ended_ns = 0;
    h.state = static_cast<std::uint32_t>(State::recording);
}

namespace {

// As new, without a look at what is there: it may speak of pages that are gone.
template <typename... Table>
void begin_anew(Table&... table) noexcept {
    (::new (static_cast<void*>(&table)) Table(), ...);
}

// The same contents at the same place, and nobody else's.
void make_private(const OwnRanges::Range& range) noexcept {
    const std::size_t bytes = range.end - range.start;
    auto* const at = reinterpret_cast<void*>(range.start);
    void* const copy = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy != MAP_FAILED) {
        ::memcpy(copy, at, bytes);
        if (::mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED) return;
    }
    ::mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

}  // namespace

// Other threads of the parent may have been anywhere in the recorder when this process was made, so its tables are not read.
void Recorder::forget_tables_of_parent() noexcept {
    own_ranges.each([](const OwnRanges::Range& range) {
        if (range.use == Use::kept) return;
        capture::file_guard::remove(reinterpret_cast<void*>(range.start));
        unmap_pages(reinterpret_cast<void*>(range.start), range.end - range.start);
    });
    spare_room.drop();
    file_.forget_in_child();
    begin_anew(tree_, accounts_, mappings_, made_objects_, shared_pages_, parts_, timeline_, facts_, marks_, residency_,
               large_blocks_, pressure_, devices_, device_samples_, device_terms_, last_samples_, code_class_, positions_,
               noted_names_, base_threads_);
    live_.empty();
    samples_.forget_in_child();
}

void Recorder::become_unrecorded_child() noexcept {
    const bool is_amid_event = is_inside();
    lock_.reset();
    pool_lock_.reset();
    live_.forget_growth();
    set_mode(Mode::off);
    for (Thread* t = all_; t != nullptr; t = t->next_of_all) {
        if (t == tls.thread) continue;
        t->ticket.active.store(0, std::memory_order_relaxed);  // it is not here: nobody may wait for it
        t->id = 0;
    }
    if (is_amid_event) {
        // A signal's handler forked, and the event that it interrupted goes on here, too, when the handler returns.
        own_ranges.each([](const OwnRanges::Range& range) {
            if (range.use != Use::shared) return;
            make_private(range);
            capture::file_guard::remove(reinterpret_cast<void*>(range.start));
        });
    } else {
        forget_tables_of_parent();
    }
    capture::file_guard::end_in_child();
}

}  // namespace hiwater
