#include "session/relatives.h"

#include <unistd.h>

#include <algorithm>

#include "session/recorder.h"

namespace hiwater {

// Each is followed by its children, so the list grows while it is gone through.
void Relatives::find() noexcept {
    processes_[0] = ::getpid();
    count_ = 1;
    for (int i = 0; i < count_; ++i) count_ = process::add_children(processes_[i], processes_, count_, kMost);
}

bool Relatives::have_moved() noexcept {
    std::int64_t faults = 0;
    for (int i = 0; i < count_; ++i) faults += process::read_stat(processes_[i]).page_faults;
    const bool moved = count_ != last_count_ || (faults - faults_) * kFewTouched >= pages_;
    if (moved) faults_ = faults;
    return moved;
}

bool Relatives::read_if_due(Recorder& recorder, std::uint64_t now, process::Shared* own) noexcept {
    if (now < next_ns_ || spent_ns_ + last_ns_ > kBurstNs + now / kShare) return false;
    const std::uint64_t began_ns = process::thread_ns();
    const auto pause = [&](std::uint64_t shortest) { next_ns_ = now + std::max({kLeastPauseNs, now / 512, shortest}); };
    pause(0);
    find();
    const bool is_alone = count_ == 1 && last_count_ <= 1;
    const bool is_due = !is_alone && (have_moved() || now >= calm_until_ns_);
    bool is_own_known = false;
    if (is_due) {
        pages_ = 0;
        last_count_ = count_;
        for (int i = 0; i < count_; ++i) {
            process::Shared shared;
            if (!process::read_shared(&shared, processes_[i])) continue;
            if (i == 0) is_own_known = true, *own = shared;
            pages_ += shared.resident_bytes / static_cast<std::int64_t>(kPage);
            recorder.note_relative(
                {recorder.now_ns(), shared.resident_bytes, shared.excess_bytes, static_cast<std::uint32_t>(processes_[i]), 0});
        }
        last_ns_ = process::thread_ns() - began_ns;
        pause(kPause * last_ns_);
        calm_until_ns_ = now + kCalmShare * last_ns_;
    }
    spent_ns_ += process::thread_ns() - began_ns;
    return is_own_known;
}

}  // namespace hiwater
