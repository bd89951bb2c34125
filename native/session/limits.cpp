#include "session/limits.h"

#include <unistd.h>

#include <algorithm>

#include "base/own_limit.h"
#include "base/process.h"

namespace hiwater {

using capture::LimitKind;

void Limits::begin(const std::string& cgroup_usage, const std::vector<std::string>& cgroup_limits) {
    *this = {};
    for (const std::string& path : cgroup_limits) limits_.push_back(std::make_unique<NamedFile>(path));
    const std::string folder = cgroup_usage.substr(0, cgroup_usage.rfind('/') + 1),
                      pressure = folder + "memory.pressure";
    if (!cgroup_usage.empty()) usage_ = std::make_unique<NamedFile>(cgroup_usage);
    if (!folder.empty()) statistics_ = std::make_unique<NamedFile>(folder + "memory.stat");
    const bool has_pressure = !folder.empty() && ::access(pressure.c_str(), R_OK) == 0;
    pressure_ = std::make_unique<NamedFile>(has_pressure ? pressure : "/proc/pressure/memory");
    machine_bytes_ = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

capture::PressureRecord Limits::read(std::uint64_t now, std::int64_t address_space_bytes) noexcept {
    constexpr std::uint64_t kMachineNs = 100'000'000, kFarNs = 500'000'000, kLimitsNs = 1'000'000'000;
    const std::uint64_t machine_ns = nearest_.share() > kWatched ? kMachineNs : kFarNs;
    const bool is_machine_due = available_ns_ == 0 || now - available_ns_ >= machine_ns;
    if (is_machine_due) {
        available_bytes_ = process::available_bytes();
        available_ns_ = now;
    }
    if (limits_ns_ == 0 || now - limits_ns_ >= kLimitsNs) {
        cgroup_limit_ = lowest_cgroup_limit();
        limits_ns_ = now;
    }
    if (usage_ != nullptr && (is_machine_due || cgroup_limit_ >= 0)) cgroup_bytes_ = process::read_number(usage_->file);
    const OwnLimit::InForce space = own_limit.in_force();
    return {
        now, address_space_bytes - space.uncounted, space.limit, cgroup_bytes_, cgroup_limit_, available_bytes_, -1, -1,
        -1};
}

std::int64_t Limits::entry(const std::unique_ptr<NamedFile>& in, const char* key) noexcept {
    return in == nullptr ? -1 : process::read_entry(in->file, key);
}

std::int64_t Limits::unreclaimable(std::int64_t used) noexcept {
    std::int64_t cache = entry(statistics_, "\ntotal_inactive_file ");  // v1
    if (cache < 0) cache = entry(statistics_, "\ninactive_file ");
    return used - std::clamp<std::int64_t>(cache, 0, used);
}

bool Limits::is_group_full() noexcept {
    constexpr std::int64_t kRoomShare = 64, kLeastRoom = 4 << 20;
    if (cgroup_limit_ < 0 || usage_ == nullptr) return false;
    const std::int64_t used = process::read_number(usage_->file);
    const std::int64_t full = cgroup_limit_ - std::max(cgroup_limit_ / kRoomShare, kLeastRoom);
    return used >= full && unreclaimable(used) >= full;
}

std::int64_t Limits::lowest_cgroup_limit() const noexcept {
    std::int64_t lowest = -1;
    for (const auto& each : limits_) {
        const std::int64_t limit = process::read_number(each->file);
        if (limit >= 0 && (lowest < 0 || limit < lowest)) lowest = limit;
    }
    return lowest;
}

void Limits::consider(LimitKind kind, std::int64_t used, std::int64_t limit) noexcept {
    if (used < 0 || limit <= 0) return;
    const NearestLimit other{kind, used, limit, nearest_.stalled_percent};
    if (nearest_.kind == LimitKind::none || other.share() > nearest_.share()) nearest_ = other;
}

const NearestLimit& Limits::find_nearest(const capture::PressureRecord& row) noexcept {
    constexpr std::uint64_t kPressureNs = 1'000'000'000;
    nearest_ = {LimitKind::none, 0, 0, nearest_.stalled_percent};
    if (row.at_ns - pressure_ns_ >= kPressureNs) {
        pressure_ns_ = row.at_ns;
        nearest_.stalled_percent = static_cast<int>(std::max<std::int64_t>(0, entry(pressure_, "full avg10=")));
    }
    consider(LimitKind::address_space, row.address_space_bytes, row.address_space_limit);
    std::int64_t in_group = row.cgroup_bytes;
    if (row.cgroup_limit > 0 && static_cast<double>(in_group) >= kNear * static_cast<double>(row.cgroup_limit))
        in_group = unreclaimable(in_group);
    consider(LimitKind::cgroup, in_group, row.cgroup_limit);
    if (row.available_bytes >= 0) consider(LimitKind::machine, machine_bytes_ - row.available_bytes, machine_bytes_);
    return nearest_;
}

}  // namespace hiwater
