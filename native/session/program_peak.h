// The highest resident memory of the program: of the process, without the recorder's pages.
//
// The kernel keeps the highest resident memory of the process, and not the moment of it. The recorder's pages at a
// moment are known within bounds: they are counted from time to time, and between two counts the pages that were put by
// touch_pages() are known exactly, while all other pages only become more. So with
//
//   put(t)   what put_pages counts           rest(t) = overhead(t) - put(t), which never falls between two counts
//
// a resident memory R that was reached at an unknown moment between two samples was the program's R - put - rest: at
// least with the highest `put` between the samples and the `rest` of the next count, at most with the lowest `put` and
// the `rest` of the last one. The latter is a bound also where the kernel's peak did not rise: the process may have
// come up to it with fewer of the recorder's pages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/own_pages.h"

namespace hiwater {

class ProgramPeak {
public:
    // The recorder's pages were counted. `more_bytes`: of hiwater's that are in no range of the recorder's.
    void count(const OwnPages& own, std::int64_t more_bytes) noexcept {
        const std::int64_t overhead = own.bytes + more_bytes;
        settle(overhead - own.put_before);
        rest_ = overhead - own.put_after;
        if (!std::exchange(is_counted_, true))
            most_ = peak_ - lowest_put_ - rest_;  // there was little before the first count
    }

    // `peak_bytes`: the highest since the recording began, as the kernel says; 0: not known, or not read this time.
    // `resident_bytes` was read before the call.
    void sample(std::int64_t resident_bytes, std::int64_t peak_bytes, PutPages& put) noexcept {
        const std::int64_t highest = put.read_and_reset_highest();
        highest_put_ = std::max(highest_put_, highest);
        consider(resident_bytes, highest);
        if (peak_bytes > peak_) {
            consider(peak_bytes, highest_put_);
            peak_ = peak_bytes;
        }
        lowest_put_ = std::min(lowest_put_, put.least());
        if (peak_bytes == 0) return;
        // Also where it is as high as before: with fewer of the recorder's pages, the program's own was higher.
        if (is_counted_) most_ = std::max(most_, peak_ - lowest_put_ - rest_);
        lowest_put_ = put.least();
        highest_put_ = put.most();
    }
    // So many of the pages that were counted last may go: they are put pages from now on, so that the rest does not
    // fall.
    void take_for_put(std::int64_t bytes, PutPages& put) noexcept {
        highest_put_ = std::max(highest_put_, put.read_and_reset_highest()) + bytes;
        lowest_put_ += bytes;
        if (open_ != kNone) open_ -= bytes;
        rest_ -= bytes;
        put.begin_putting(static_cast<std::size_t>(bytes));
        put.end_putting(static_cast<std::size_t>(bytes));
    }
    void begin(std::int64_t peak_bytes, PutPages& put) noexcept {
        *this = {};
        peak_ = peak_bytes;
        highest_put_ = put.read_and_reset_highest();
        lowest_put_ = put.least();
    }

    // What is known so far. The peak is no lower than bytes(), and no higher than by error_bytes(): the kernel's own
    // error comes on top.
    std::int64_t bytes() const noexcept { return std::max(least_, open_ - rest_); }
    std::int64_t error_bytes() const noexcept { return std::max<std::int64_t>(0, most_ - bytes()); }
    // Of hiwater at the moment of that peak; and at a moment when put_pages has counted `put`.
    std::int64_t overhead_bytes() const noexcept {
        return open_ - rest_ > least_ ? open_resident_ - (open_ - rest_) : overhead_;
    }
    std::int64_t overhead_at(std::int64_t put) const noexcept { return std::max<std::int64_t>(0, rest_ + put); }

private:
    static constexpr std::int64_t kNone = INT64_MIN / 4;

    void consider(std::int64_t resident, std::int64_t put) noexcept {
        if (resident - put <= open_) return;
        open_ = resident - put;
        open_resident_ = resident;
    }
    void settle(std::int64_t rest) noexcept {
        if (open_ - rest > least_) {
            least_ = open_ - rest;
            overhead_ = open_resident_ - least_;
        }
        open_ = kNone;
    }

    bool is_counted_ = false;
    std::int64_t rest_ = 0;                          // at the last count
    std::int64_t open_ = kNone, open_resident_ = 0;  // the highest R - put since that count, and its R
    std::int64_t least_ = kNone, most_ = 0;          // bounds of the program's peak, up to the last count
    std::int64_t overhead_ = 0;                      // at the peak
    std::int64_t peak_ = 0;                          // the process's
    std::int64_t lowest_put_ = 0, highest_put_ = 0;  // since the kernel's peak was read
};

}  // namespace hiwater
