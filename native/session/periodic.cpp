// What the sampler's thread writes down at intervals: the timeline, slices, pressure of limits, and where resident
// memory is.
#include <algorithm>
#include <utility>

#include "base/process.h"
#include "session/children.h"
#include "session/recorder.h"

namespace hiwater {

// Points are spaced by 1/2048 of the recording's age and slices by 1/64, so that their number grows with the logarithm
// of its length. Closing a slice goes over all accounts while the program waits: it is to take a hundredth of its time
// at most.
constexpr std::uint64_t kShortestPointNs = 1'000'000, kShortestSliceNs = 25'000'000, kSliceCostShare = 100;

// The sampler alone writes these fields and the timeline, and the figures it copies are single words: no lock, which
// would make the program's threads wait (the capture stays open while the sampler runs). But threads that share the
// lock have accounts of their own: after a kill, what is missing is what they did since the last tick.
void Recorder::tick(std::uint64_t now, const process::Sizes& sizes, std::int64_t kernel_peak_bytes) noexcept {
    BusyGuard busy;
    file_.find_truncation();
    merge_thread_accounts();
    capture::Header& h = file_.header();
    if (is_on()) last_peak_ = {accounts_.peak_bytes(), accounts_.peak_blocks()};
    capture::raise_heartbeat(h, now);
    store_counts();
    note_exact_totals_if_due(now);
    note_refused_children();
    write_back_if_due(now);
    note_resident(sizes.resident_bytes, kernel_peak_bytes);
    if (!is_on()) return;
    count_own_pages_if_due(now);
    note_interval(now);
    guarded([&] {
        if (now - last_point_ns_ >= std::max(kShortestPointNs, now / 2048) || timeline_.size() == 0)
            add_point(now, sizes);
        const std::uint64_t opened = accounts_.epoch().slice_start_ns;
        if (now < opened + std::max(kShortestSliceNs, now / 64) || !until_slice_.is_over(now)) return;
        Hold hold(lock_);
        if (!is_on()) return;
        spare_room.refill();
        // Asked again: since `now` was read a refused request may have closed slices of its own.
        const std::uint64_t begun = now_ns();
        const std::uint64_t used_ns = process::thread_ns();
        accounts_.close_slice(begun);
        until_slice_.begin(begun, kSliceCostShare * (process::thread_ns() - used_ns), 0);
        falls_left_ = std::min(falls_left_ + kFallsInSlice, kMostFalls);
        rises_left_ = std::min(rises_left_ + 1, kMostRises);
    });
}

void Recorder::note_refused_children() noexcept {
    const auto [count, error] = children.refused();
    file_.header().refused_children = count;
    file_.header().refused_error = error;
}

// For a capture that its file system cannot hold: a copy each second, or less often where a copy takes more than a
// hundredth of that.
void Recorder::write_back_if_due(std::uint64_t now) noexcept {
    constexpr std::uint64_t kSecond = 1'000'000'000;
    if (!file_.is_kept_in_memory() || now < next_write_back_ns_) return;
    Hold hold(lock_);
    file_.write_back();  // what fails now is tried again; a failure of the last one, at the stop, is reported
    const std::uint64_t took = now_ns() - now;
    next_write_back_ns_ = now + std::max(kSecond, 100 * took);
}

void Recorder::add_point(std::uint64_t now, const process::Sizes& sizes) {
    const capture::Header& h = file_.header();
    capture::TimelineRecord point{now, sizes.resident_bytes, {}, h.overhead_last_bytes, sizes.mapped_bytes};
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
    constexpr std::uint64_t kMostMarkers = 10'000;
    if (!is_on() || only_counters_ || collections <= collections_ || collection_markers_ == kMostMarkers) return;
    const std::int64_t before = collections_;
    collections_ = collections;
    ++collection_markers_;
    if_there_is_room([&] {
        Hold hold(lock_);  // any thread may add a marker
        markers_.append({now_ns(), static_cast<std::uint64_t>(collections - before),
                         static_cast<std::uint32_t>(capture::MarkerKind::gc), 0});
    });
}

void Recorder::note_pressure(std::uint64_t now, std::int64_t address_space_bytes,
                             const process::Shared& shared) noexcept {
    constexpr std::uint64_t kShortestNs = 10'000'000, kShortestRowNs = 20'000'000;
    constexpr std::int64_t kStepBytes = 1 << 20;
    if (!is_on()) return;
    if (pressure_.size() != 0) {
        const capture::PressureRecord& last = pressure_[pressure_.size() - 1];
        if (now - last.at_ns < kShortestNs && shared.excess_bytes == last.shared_excess_bytes) return;
    }
    capture::PressureRecord row = limits_.read(now, address_space_bytes);
    row.shared_excess_bytes = shared.excess_bytes;
    row.private_bytes = shared.private_bytes;
    row.mapped_excess_bytes = shared.mapped_excess_bytes;
    const NearestLimit& nearest = limits_.find_nearest(row);
    capture::Header& h = file_.header();
    h.nearest_used_bytes = static_cast<std::uint64_t>(nearest.used_bytes);
    h.nearest_limit_bytes = static_cast<std::uint64_t>(nearest.limit_bytes);
    if (row.shared_excess_bytes >= 0) h.shared_excess_bytes = row.shared_excess_bytes;
    h.nearest_limit_kind = static_cast<std::uint32_t>(nearest.kind);
    if_there_is_room([&] {
        const bool is_step =
            pressure_.size() != 0 && shared_steps_left_ != 0 &&
            std::abs(row.shared_excess_bytes - pressure_[pressure_.size() - 1].shared_excess_bytes) > kStepBytes;
        if (is_step) --shared_steps_left_;                            // after a fork, or as a child has ended
        const bool follows_step = std::exchange(was_step_, is_step);  // whose row stays: it has the reading's time
        const bool keep = pressure_.size() == 0 || is_step || follows_step ||
                          now - last_pressure_ns_ >= std::max(kShortestRowNs, now / 512);
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

void Recorder::note_relative(const capture::RelativeRecord& relative) noexcept {
    if_there_is_room([&] {
        Hold hold(lock_);  // extents are everybody's
        if (is_on()) relatives_.append(relative);
    });
}

void Recorder::leave_last_words() noexcept {
    if (!is_on() || !last_words_.become_due(limits_.nearest())) return;
    if (last_words_.have_file()) {
        LastWords::Text words;
        if_there_is_room([&] {
            Hold hold(lock_);
            if (is_on()) compose_last_words(&words);
        });
        if (words.size != 0 && !last_words_.write(words)) note_fact(kLastWordsNotWritten, last_words_.failure());
    }
    take_residency_snapshot();  // after it: reading all mappings takes time that the process may not have
}

void Recorder::take_residency_snapshot() noexcept {
    BusyGuard busy;
    if (!is_on() || only_counters_ || !residency_snapshots_) return;
    residency::Breakdown found;
    const std::uint64_t at_ns = now_ns();
    if_there_is_room([&] {
        residency::Ranges mappings;
        large_mappings(&mappings);
        if (!residency::take_snapshot(&found, &mappings)) return;
        Hold hold(lock_);
        if (is_on()) append_residency(found, at_ns);
    });
}

bool Recorder::is_of_small_child() const noexcept {
    constexpr std::uint64_t kShortNs = 1'000'000'000;
    return is_on() && !only_counters_ && children.is_child() && now_ns() < kShortNs &&
           Children::is_small(accounts_.peak_bytes());
}

// What comes next may be a peak, which has this time then. Where other processes count in the same sum, the slice ends
// before a rise to a height, up to kMostRises times in a row: what this process held before is not to be taken for as
// much.
void Recorder::before_rise(std::uint64_t bytes) noexcept {
    if (is_inside() || only_counters_) return;
    sampler::note_activity();
    if_there_is_room([&] {
        Hold hold(lock_, ticket());
        if (!is_on()) return;
        const std::uint64_t now = now_ns();
        if (sampler::has_relatives() && rises_left_ != 0 &&
            accounts_.is_below_height(static_cast<std::int64_t>(bytes))) {
            --rises_left_;
            accounts_.close_slice(now);
        }
        capture::raise_heartbeat(file_.header(), now);
    });
}

// What falls next may be the peak of resident memory.
void Recorder::before_release(std::uint64_t bytes) noexcept {
    if (is_inside() || only_counters_) return;
    std::int64_t live = 0;
    BusyGuard busy;
    {
        Hold hold(lock_, ticket());
        if (!is_on()) return;
        live = live_bytes();
    }
    sampler::before_release(live, static_cast<std::int64_t>(bytes));
}

// Moments that are nearly as high as the peak get slices of their own: a change to the program that lowers one of them
// lowers the peak only if the others are lower. So the slice ends when the total falls from there, up to kMostFalls
// times in a row.
void Recorder::after_release() noexcept {
    if (is_inside() || only_counters_) return;
    if_there_is_room([&] {
        Hold hold(lock_, ticket());
        if (!is_on() || falls_left_ == 0 || !accounts_.has_fallen_from_height()) return;
        --falls_left_;
        accounts_.close_slice(now_ns());
    });
}

void Recorder::large_mappings(residency::Ranges* out) {
    constexpr std::uintptr_t kWorthKnowing = 64 * 1024;
    Hold hold(lock_);
    mappings_.pieces().each([&](std::uintptr_t start, std::uintptr_t end, const Piece& piece) {
        const auto kind = static_cast<capture::Kind>(accounts_.record(piece.account).kind);
        const bool is_known =
            kind == capture::Kind::mapping || kind == capture::Kind::shared || kind == capture::Kind::attached;
        if (is_known && end - start >= kWorthKnowing) out->push_back({start, end});
    });
}

// Under the lock. The parts come last: a reader takes a snapshot as complete when it has all parts.
void Recorder::append_residency(const residency::Breakdown& found, std::uint64_t at_ns) {
    constexpr std::size_t kMostBlocks = 64;
    for (std::size_t i = 0; i < std::min(kMostBlocks, found.large.size()); ++i) {
        const residency::LargeBlock& large = found.large[i];
        const Block block = sampled() ? samples_.find_block(large.block) : live_.find_block(large.block);
        const std::uint32_t account =
            large.from_malloc ? block.account : mappings_.pieces().piece_at(large.address).account;
        const std::uint32_t node = account == 0 ? 0 : accounts_.record(account).node;
        large_blocks_.append({at_ns, large.bytes, large.touched_bytes, node, large.from_malloc ? 1u : 0u});
    }
    // hiwater's own code is overhead, and was found among files and Python's objects.
    const auto of = [&](residency::Part part) { return found.rows[static_cast<std::size_t>(part)].resident_bytes; };
    const std::int64_t files = std::min(code_file_bytes_, of(residency::Part::files)),
                       objects = std::min(code_anonymous_bytes_, of(residency::Part::python_live));
    const auto moved = [&](residency::Part part) -> std::int64_t {
        if (part == residency::Part::overhead) return files + objects;
        return part == residency::Part::files ? -files : part == residency::Part::python_live ? -objects : 0;
    };
    for (std::size_t i = 0; i < residency::kParts; ++i) {
        const auto part = static_cast<residency::Part>(i);
        residency_.append({at_ns, found.rows[i].resident_bytes + moved(part), found.rows[i].untouched_bytes,
                           tree_.string(residency::name_of(part)), 0});
    }
}

}  // namespace hiwater
