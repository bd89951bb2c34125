// Summaries of a recording while it runs and when it ends, and the check that its tables agree with each other.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "session/recorder.h"

namespace hiwater {

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
    if (file_.is_truncated()) {
        s.peak_bytes = last_peak_.bytes;
        s.peak_blocks = last_peak_.blocks;
        s.program_peak_bytes = last_program_peak_;
        return s;
    }
    s.peak_bytes = accounts_.peak_bytes();
    s.peak_blocks = accounts_.peak_blocks();
    s.live_bytes = h.live_bytes;
    s.program_peak_bytes = h.program_peak_bytes;
    s.resident_error_bytes = h.resident_error_bytes + h.program_peak_error_bytes;
    s.resident_exact = h.resident_exact != 0;
    s.overhead_bytes = static_cast<std::int64_t>(h.overhead_bytes);
    s.standard_error_bytes = standard_error_of_peak();
    name_lines(s);
    return s;
}

std::map<std::string, std::int64_t> Recorder::counters() {
    BusyGuard busy;
    Hold hold(lock_);
    std::map<std::string, std::int64_t> out{{"recording", recording() ? 1 : 0}};
    if (!file_.is_open()) return out;
    const capture::Header& h = file_.header();
    const Accounts::Figures total = accounts_.total();
    out["live_bytes"] = h.live_bytes;
    out["live_blocks"] = h.live_blocks;
    out["peak_bytes"] = accounts_.peak_bytes();
    out["total_bytes"] = total.bytes;
    out["total_blocks"] = total.blocks;
    out["python_live_bytes"] = h.kind_live_bytes[0];
    out["native_live_bytes"] = h.kind_live_bytes[1];
    out["mapping_live_bytes"] = h.kind_live_bytes[2];
    out["lost_events"] = static_cast<std::int64_t>(lost_.load(std::memory_order_relaxed));
    out["shared_events"] = static_cast<std::int64_t>(shared_events_);
    out["nodes"] = static_cast<std::int64_t>(tree_.node_count());
    out["codes"] = static_cast<std::int64_t>(tree_.code_count());
    out["accounts"] = accounts_.size();
    out["mappings"] = static_cast<std::int64_t>(mappings_.pieces().size());
    out["own_bytes"] = OwnPagesCount().read(sampler::has_relatives()).bytes;
    out["capture_bytes"] = static_cast<std::int64_t>(file_.mapped_bytes());
    if (native_frames_.are_wanted()) {
        const unwind::Figures& walked = native_frames_.unwinder().figures();
        for (const auto& [name, value] : {std::pair{"native_walks", walked.walks},
                                          {"native_frames", walked.frames},
                                          {"native_unknown", walked.unknown},
                                          {"native_cut", walked.limit},
                                          {"native_checked", walked.checked},
                                          {"native_mismatches", walked.mismatches},
                                          {"native_pointer_rules", walked.by_pointer_rules},
                                          {"native_rules", native_frames_.unwinder().rules()}})
            out[name] = static_cast<std::int64_t>(value);
    }
    return out;
}

std::string Recorder::self_check() {
    BusyGuard busy;
    Hold hold(lock_);
    if (!file_.is_open()) return {};
    if (!tree_.is_consistent()) return "the call tree is not consistent";
    if (!live_.is_consistent()) return "the table of live blocks is not consistent";
    if (!mappings_.pieces().is_consistent()) return "the mappings overlap";
    if (!samples_.is_consistent()) return "the table of sampled blocks is not consistent";
    std::map<std::uint32_t, std::pair<std::int64_t, std::int64_t>> sums;
    const auto add = [&sums](std::uint32_t account, std::uint64_t bytes, std::int64_t blocks) {
        sums[account].first += static_cast<std::int64_t>(bytes);
        sums[account].second += blocks;
    };
    live_.each([&](std::uintptr_t, const Block& block) { add(block.account, block.bytes, 1); });
    samples_.each([&](std::uintptr_t, const Block& block) {
        const sampling::Weight weight = weight_of(block.bytes);
        add(block.account, static_cast<std::uint64_t>(weight.bytes), weight.blocks);
    });
    mappings_.each_counted(add);
    for (std::uint32_t id = 1; id < accounts_.size(); ++id) {
        const capture::AccountRecord& l = accounts_.record(id);
        const auto kind = static_cast<capture::Kind>(l.kind);
        if (kind == capture::Kind::device) continue;  // not blocks of this process's tables
        if (sums[id].first != l.live_bytes || sums[id].second != l.live_blocks)
            return "account " + std::to_string(id) + " has " + std::to_string(l.live_bytes) + " bytes in " +
                   std::to_string(l.live_blocks) + " blocks, the live blocks " + std::to_string(sums[id].first) +
                   " in " + std::to_string(sums[id].second);
    }
    if (!accounts_.is_consistent()) return "the accounts do not add up to the totals";
    return {};
}

// --- the heap's meters

Recorder::Heap Recorder::heap_now() noexcept {
    if (!file_.is_open()) return carried_;
    merge_thread_accounts();
    const capture::Header& h = file_.header();
    const auto live = [&h](capture::Kind kind) { return h.kind_live_bytes[static_cast<std::uint32_t>(kind)]; };
    return {carried_.live_bytes + h.live_bytes,
            carried_.live_blocks + h.live_blocks,
            carried_.python_bytes + live(capture::Kind::python),
            carried_.native_bytes + live(capture::Kind::native),
            carried_.mapping_bytes + live(capture::Kind::mapping),
            carried_.shared_bytes + live(capture::Kind::shared)};
}

Accounts::HeapPeak Recorder::read_and_reset_heap_peak() noexcept {
    BusyGuard busy;
    Hold hold(lock_, ticket());
    if (!file_.is_open()) return {carried_.live_bytes, carried_.python_bytes};
    raise_heap_peaks();
    is_heap_read_ = true;
    Accounts::HeapPeak peak = std::exchange(unread_, {});
    peak.total_bytes += carried_.live_bytes;
    peak.python_bytes += carried_.python_bytes;
    return peak;
}

void Recorder::stop_peak_reading() noexcept {
    BusyGuard busy;
    Hold hold(lock_, ticket());
    is_heap_read_ = false;
    if (!scopes_.are_open()) stop_reading_accounts();
}

}  // namespace hiwater
