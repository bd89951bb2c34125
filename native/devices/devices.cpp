#include "devices/devices.h"

#include <algorithm>

namespace hiwater {

namespace {

// Samples are spaced by 1/1024 of the recording's age, so that their number grows with the logarithm of its length.
constexpr std::uint64_t kShortestSampleNs = 40'000'000;

}  // namespace

void Devices::attach(capture::CaptureFile& file) {
    devices_.attach(file, capture::Table::devices);
    samples_.attach(file, capture::Table::device_samples);
    terms_.attach(file, capture::Table::device_terms);
    last_samples_.reset();
}

std::uint32_t Devices::add(const DeviceFacts& facts) {
    capture::DeviceRecord row{};
    row.name = tree_.string(facts.name);
    row.backend = tree_.string(facts.backend);
    row.source = tree_.string(facts.source);
    row.note = tree_.string("");
    row.limit_bytes = facts.limit_bytes;
    row.peak_allocated_bytes = row.peak_reserved_bytes = row.peak_used_bytes = -1;
    row.exact = 1;
    last_samples_.push_back({});
    return static_cast<std::uint32_t>(devices_.append(row));
}

void Devices::sample(std::uint32_t device, const DeviceFigures& figures, std::uint64_t now) {
    if (device >= devices_.size()) return;
    capture::DeviceRecord& row = devices_[device];
    if (figures.allocated_peak > row.peak_allocated_bytes) row.peak_at_ns = now;
    row.peak_allocated_bytes = std::max(row.peak_allocated_bytes, figures.allocated_peak);
    row.peak_reserved_bytes = std::max(row.peak_reserved_bytes, figures.reserved_peak);
    row.peak_used_bytes = std::max(row.peak_used_bytes, figures.used);
    row.exact = figures.exact ? 1 : 0;
    row.note = tree_.string(figures.note);
    capture::DeviceSampleRecord sample{
        now, figures.allocated, figures.allocated_peak, figures.reserved, figures.reserved_peak, figures.used, device,
        0};
    LastSample& last = last_samples_[device];
    if (last.begun_ns != 0 && now - last.begun_ns < std::max(kShortestSampleNs, now / 1024)) {
        capture::DeviceSampleRecord& open = samples_[last.row];
        sample.allocated_peak_bytes = std::max(sample.allocated_peak_bytes, open.allocated_peak_bytes);
        sample.reserved_peak_bytes = std::max(sample.reserved_peak_bytes, open.reserved_peak_bytes);
        open = sample;
        return;
    }
    last = {samples_.append(sample), now};
}

void Devices::note_terms(std::uint32_t device, const std::vector<std::pair<std::string, std::int64_t>>& terms,
                         std::uint64_t now) {
    if (device >= devices_.size()) return;
    for (const auto& [term, bytes] : terms) terms_.append({now, bytes, device, tree_.string(term)});
}

}  // namespace hiwater
