// What limits the memory of this process, and how near it is to each limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/own_file.h"
#include "base/uncopied.h"
#include "capture/format.h"

namespace hiwater {

struct NearestLimit {
    capture::LimitKind kind = capture::LimitKind::none;
    std::int64_t used_bytes = 0, limit_bytes = 0;
    int stalled_percent = 0;  // of the last ten seconds, all processes of the group waited for memory (PSI)

    double share() const noexcept {
        return limit_bytes <= 0 ? 0 : static_cast<double>(used_bytes) / static_cast<double>(limit_bytes);
    }
};

// Of the sampler's thread, after begin().
class Limits {
public:
    static constexpr double kNear = 0.9;  // NEAR of capture/limits.py
    static constexpr double kWatched = 0.75;
    static constexpr int kStalledPercent = 10;

    void begin(const std::string& cgroup_usage, const std::vector<std::string>& cgroup_limits);
    // What seldom changes is read seldom, since each file costs as much as the rest of a sample: the limits once a
    // second, what the machine has available ten times a second, and so the group's usage where the group has no limit;
    // twice a second where all limits are far.
    capture::PressureRecord read(std::uint64_t now, std::int64_t address_space_bytes) noexcept;
    // The limit of `row` that is reached first.
    const NearestLimit& find_nearest(const capture::PressureRecord& row) noexcept;
    const NearestLimit& nearest() const noexcept { return nearest_; }
    // Whether the group has hardly room. To open a file takes memory of the kernel's, which counts in the group, as a
    // page of a file does. Where there is none the kernel ends a process for it: maybe this one, while the one that
    // needs so much is still ending.
    bool is_group_full() noexcept;
    template <typename Call>
    void each_file(const Call& call) noexcept {
        for (const auto& limit : limits_) call(limit->file);
        for (NamedFile* const each : {usage_.get(), statistics_.get(), pressure_.get()})
            if (each != nullptr) call(each->file);
    }

private:
    struct NamedFile : Uncopied {
        explicit NamedFile(const std::string& name) : path(name), file(path.c_str()) {}
        const std::string path;
        OwnFile file;
    };
    static std::int64_t entry(const std::unique_ptr<NamedFile>& in, const char* key) noexcept;
    // What the group uses without page cache that the kernel drops before it kills.
    std::int64_t unreclaimable(std::int64_t used) noexcept;
    std::int64_t lowest_cgroup_limit() const noexcept;
    void consider(capture::LimitKind kind, std::int64_t used, std::int64_t limit) noexcept;

    std::unique_ptr<NamedFile> usage_, statistics_, pressure_;  // null: there is none
    std::vector<std::unique_ptr<NamedFile>> limits_;
    std::uint64_t available_ns_ = 0, limits_ns_ = 0, pressure_ns_ = 0;
    std::int64_t available_bytes_ = -1, machine_bytes_ = 0, cgroup_bytes_ = -1, cgroup_limit_ = -1;
    NearestLimit nearest_;
};

}  // namespace hiwater
