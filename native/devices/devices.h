// What a recording keeps of accelerators. The figures come from Python: only the libraries' own code can read their
// allocators.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "capture/capture_file.h"
#include "stacks/call_tree.h"

namespace hiwater {

struct DeviceFacts {
    std::string name, backend, source;
    std::int64_t limit_bytes = -1;
};

// In bytes; -1: not measured.
struct DeviceFigures {
    std::int64_t allocated = -1, allocated_peak = -1, reserved = -1, reserved_peak = -1, used = -1;
    bool exact = true;
    std::string note;
};

// Callers hold the recorder's lock. `now` is in the recording's time. All but reset() may throw NoRoom or bad_alloc.
class Devices {
public:
    explicit Devices(CallTree& tree) noexcept : tree_(tree) {}
    void attach(capture::CaptureFile& file);

    // Returns the number of the new device.
    std::uint32_t add(const DeviceFacts& facts);
    void sample(std::uint32_t device, const DeviceFigures& figures, std::uint64_t now);
    void note_terms(std::uint32_t device, const std::vector<std::pair<std::string, std::int64_t>>& terms,
                    std::uint64_t now);

private:
    struct LastSample {
        std::uint64_t row = 0, begun_ns = 0;
    };

    CallTree& tree_;
    capture::FileTable<capture::DeviceRecord> devices_;
    capture::FileTable<capture::DeviceSampleRecord> samples_;
    capture::FileTable<capture::DeviceTermRecord> terms_;
    PageVector<LastSample> last_samples_;  // of each device
};

}  // namespace hiwater
