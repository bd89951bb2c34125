// What a recording keeps of accelerators. The figures come from Python: only the libraries' own code can ask their allocators.
#include <algorithm>

#include "session/recorder.h"

namespace hiwater {

namespace {

// Samples are spaced by 1/1024 of the recording's age, so that their number grows with the logarithm of its length.
constexpr std::uint64_t kShortestSampleNs = 40'000'000;

}  // namespace

std::int32_t Recorder::add_device(const DeviceFacts& facts) noexcept {
    std::int32_t number = -1;
    if_there_is_room([&] {
        Hold hold(lock_);
        if (!is_on() || only_counters_) return;
        capture::DeviceRecord row{};
        row.name = tree_.string(facts.name);
        row.backend = tree_.string(facts.backend);
        row.source = tree_.string(facts.source);
        row.note = tree_.string("");
        row.limit_bytes = facts.limit_bytes;
        row.peak_allocated_bytes = row.peak_reserved_bytes = row.peak_used_bytes = -1;
        row.exact = 1;
        last_samples_.push_back({});
        number = static_cast<std::int32_t>(devices_.append(row));
    });
    return number;
}

void Recorder::sample_device(std::uint32_t device, const DeviceFigures& figures) noexcept {
    if_there_is_room([&] {
        Hold hold(lock_);
        if (!is_on() || only_counters_ || device >= devices_.size()) return;
        const std::uint64_t now = now_ns();
        capture::DeviceRecord& row = devices_[device];
        if (figures.allocated_peak > row.peak_allocated_bytes) row.peak_at_ns = now;
        row.peak_allocated_bytes = std::max(row.peak_allocated_bytes, figures.allocated_peak);
        row.peak_reserved_bytes = std::max(row.peak_reserved_bytes, figures.reserved_peak);
        row.peak_used_bytes = std::max(row.peak_used_bytes, figures.used);
        row.exact = figures.exact ? 1 : 0;
        row.note = tree_.string(figures.note);
        capture::DeviceSampleRecord sample{
            now, figures.allocated, figures.allocated_peak, figures.reserved, figures.reserved_peak, figures.used, device, 0};
        LastSample& last = last_samples_[device];
        if (last.begun_ns != 0 && now - last.begun_ns < std::max(kShortestSampleNs, now / 1024)) {
            capture::DeviceSampleRecord& open = device_samples_[last.row];
            sample.allocated_peak_bytes = std::max(sample.allocated_peak_bytes, open.allocated_peak_bytes);
            sample.reserved_peak_bytes = std::max(sample.reserved_peak_bytes, open.reserved_peak_bytes);
            open = sample;
            return;
        }
        last = {device_samples_.append(sample), now};
    });
}

void Recorder::note_device_terms(std::uint32_t device, const std::vector<std::pair<std::string, std::int64_t>>& terms) noexcept {
    if_there_is_room([&] {
        Hold hold(lock_);
        if (!is_on() || only_counters_ || device >= devices_.size()) return;
        const std::uint64_t now = now_ns();
        for (const auto& [term, bytes] : terms) device_terms_.append({now, bytes, device, tree_.string(term)});
    });
}

}  // namespace hiwater
