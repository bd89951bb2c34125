// For who goes over all that a capture has, as the end of a recording does: most of it is in the file alone
// (give_pages_back()), and may not become resident at once. A process that has lived within its limit would be killed
// for it.
#pragma once

#include <cstdint>

#include "base/process.h"
#include "base/uncopied.h"
#include "capture/capture_file.h"

namespace hiwater::capture {

class InPieces : Uncopied {
public:
    explicit InPieces(const CaptureFile& file) noexcept : file_(file), faults_(process::thread_page_faults()) {}
    ~InPieces() { file_.give_pages_back(); }

    // For each record that is read. `at_random`: it does not lie beside the last one.
    void next(bool at_random = false) noexcept {
        records_ += at_random ? 4 : 1;
        if (records_ < kRecords) return;
        records_ = 0;
        if (process::thread_page_faults() - faults_ < kMostFaults) return;
        file_.give_pages_back();
        faults_ = process::thread_page_faults();
    }

private:
    // A fault brings the pages around as well, 64 KiB in all. So this is 1.5 MiB, and as much again where all are read
    // at random.
    static constexpr std::int64_t kMostFaults = 24;
    static constexpr std::uint32_t kRecords = 64;

    const CaptureFile& file_;
    std::int64_t faults_;
    std::uint32_t records_ = 0;
};

}  // namespace hiwater::capture
