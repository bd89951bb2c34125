// The phases of the program in the capture, each with the highest live bytes of its time. The callers hold the
// recorder's lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/pages.h"
#include "capture/capture_file.h"

namespace hiwater {

class Scopes {
public:
    void attach(capture::CaptureFile& file) {
        header_ = &file.header();
        table_.attach(file, capture::Table::scopes);
        open_.reset();
    }
    // Returns what end() takes, or 0 where too many are open. `live_bytes` is a part of the peak. Throws NoRoom,
    // bad_alloc.
    std::uint64_t begin(capture::ScopeRecord record, std::int64_t live_bytes) {
        if (open_.size() == kMostOpen) return 0;
        for (const Open& other : open_) record.depth += table_[other.row].thread_id == record.thread_id ? 1 : 0;
        record.allocated_start_bytes = record.allocated_end_bytes = record.allocated_peak_bytes = live_bytes;
        open_.push_back({++last_, row_for(record)});
        ++header_->scopes;
        return last_;
    }
    void raise_peaks(std::int64_t live_bytes) noexcept {
        for (const Open& one : open_)
            table_[one.row].allocated_peak_bytes = std::max(table_[one.row].allocated_peak_bytes, live_bytes);
    }
    // Returns the name of the scope; 0 if none is open of this number.
    std::uint32_t end(std::uint64_t scope, std::uint64_t now_ns, std::int64_t live_bytes) noexcept {
        for (std::size_t i = 0; i < open_.size(); ++i) {
            if (open_[i].scope != scope) continue;
            capture::ScopeRecord& record = table_[open_[i].row];
            record.allocated_end_bytes = live_bytes;
            record.end_ns = now_ns;
            open_[i] = open_[open_.size() - 1];
            open_.resize(open_.size() - 1);
            return record.name;
        }
        return 0;
    }
    void end_all(std::uint64_t now_ns, std::int64_t live_bytes) noexcept {
        while (are_open()) end(open_[0].scope, now_ns, live_bytes);
    }
    bool are_open() const noexcept { return open_.size() != 0; }

private:
    static constexpr std::size_t kMostOpen = 1000;
    struct Open {
        std::uint64_t scope;
        std::uint64_t row;
    };

    std::uint64_t row_for(const capture::ScopeRecord& record) {
        if (table_.size() < capture::kMostScopes) return table_.append(record);
        do {
            oldest_ = (oldest_ + 1) % capture::kMostScopes;
        } while (table_[oldest_].end_ns == 0);  // still open, as at most a tenth of them
        table_[oldest_] = record;
        return oldest_;
    }

    capture::Header* header_ = nullptr;
    capture::FileTable<capture::ScopeRecord> table_;
    PageVector<Open> open_;
    std::uint64_t last_ = 0, oldest_ = capture::kMostScopes - 1;
};

}  // namespace hiwater
