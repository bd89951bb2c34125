// For who goes over all that a capture has, as the end of a recording does: most of it is in the file alone
// (give_pages_back()), and may not become resident at once. A process that has lived within its limit would be killed
// for it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/process.h"
#include "base/uncopied.h"
#include "capture/capture_file.h"

namespace hiwater::capture {

class InPieces : Uncopied {
public:
    explicit InPieces(const CaptureFile& file) noexcept : file_(file), faults_(process::thread_page_faults()) {
        process::Resident resident;
        if (process::read_status(&resident)) most_bytes_ = resident.peak_bytes + kAllowed;
    }
    ~InPieces() { file_.give_pages_back(); }

    // For each record that is read, one after the other.
    void next() noexcept {
        if (--left_ <= 0) keep_bounds();
    }

private:
    static constexpr std::int64_t kAllowed = 3 << 19;      // 1.5 MiB
    static constexpr std::int64_t kFaultBytes = 64 << 10;  // a fault brings the pages around as well
    static constexpr std::int64_t kRow = 4;                // as many records in a row bring less than a fault

    [[gnu::noinline]] void keep_bounds() noexcept {
        const std::int64_t faults = process::thread_page_faults();
        room_bytes_ -= (faults - faults_) * kFaultBytes;
        if (room_bytes_ < kAllowed / 2) room_bytes_ = room();
        if (room_bytes_ < kAllowed / 2) {
            file_.give_pages_back();
            room_bytes_ = std::max(kAllowed, room());
        }
        faults_ = faults;
        left_ = kRow * (room_bytes_ / kFaultBytes);
    }

    std::int64_t room() const noexcept {
        const std::int64_t resident = process::resident_bytes();
        return resident < 0 ? 0 : most_bytes_ - resident;
    }

    const CaptureFile& file_;
    std::int64_t most_bytes_ = 0;  // of resident memory: what the process has had, and a little more
    std::int64_t faults_, room_bytes_ = 0, left_ = 0;
};

}  // namespace hiwater::capture
