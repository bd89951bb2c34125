#include "session/relatives.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "session/recorder.h"

namespace hiwater {

// Each is followed by its children, so the list grows while it is gone through. Whose parent was killed is no
// descendant of this process any more.
void Relatives::find() noexcept {
    const int before = count_;
    std::copy(processes_, processes_ + before, before_);
    processes_[0] = ::getpid();
    count_ = 1;
    int next = 0;
    const auto add_descendants = [&] {
        for (; next < count_; ++next) count_ = process::add_children(processes_[next], processes_, count_, kMost);
    };
    add_descendants();
    for (int i = 1; i < before && count_ < kMost; ++i) {
        if (std::find(processes_, processes_ + count_, before_[i]) != processes_ + count_) continue;
        if (process::read_stat(before_[i]).start_ticks == started_[i]) processes_[count_++] = before_[i];
        add_descendants();
    }
}

bool Relatives::have_changed() noexcept {
    const std::int64_t numbers = std::accumulate(processes_, processes_ + count_, std::int64_t{0});
    const bool are_same = numbers == numbers_;
    pages_ = 0;
    for (int i = 0; i < count_; ++i) {
        const process::Stat stat = process::read_stat(processes_[i]);
        started_[i] = stat.start_ticks;
        pages_ += stat.resident_pages;
        Copies& of = of_[i];
        if (are_same) {
            of.count(stat, &copied_, &news_);
        } else {  // it may have been forked, or have forked
            of = {.shared = stat.resident_pages,
                  .churns_ns = of.pid == processes_[i] ? of.churns_ns : 0,
                  .pid = processes_[i]};
        }
        of.faults = stat.page_faults;
        of.pages = stat.resident_pages;
    }
    are_others_ = are_others_ || !are_same;
    numbers_ = numbers;
    return are_others_ || news_ * kFewCopied >= pages_ || std::abs(pages_ - read_pages_) * kFewMore >= pages_;
}

// A page fault makes a new page resident, or copies one that was shared: each of these once. New pages may be of files
// that others have mapped, too, as a program's libraries are.
void Relatives::Copies::count(const process::Stat& stat, std::int64_t* all, std::int64_t* news) noexcept {
    const std::int64_t more = std::max<std::int64_t>(0, stat.resident_pages - pages);
    const std::int64_t found = std::clamp<std::int64_t>(stat.page_faults - faults - more, 0, shared - copied);
    const std::int64_t part = (found + kChurnsShare - 1) / kChurnsShare;
    copied += found;
    *all += churns_ns < kChurnsNs ? found : part;
    *news += churns_ns == 0 ? found : part;
}

void Relatives::Copies::note_reading(std::int64_t shared_now, std::uint64_t now) noexcept {
    if (read_ns != 0 && copied * kFewFaults >= shared)
        churns_ns = (shared - shared_now) * kHardlyLost <= copied ? churns_ns + now - read_ns : 0;
    shared = shared_now;
    copied = 0;
    read_ns = now;
}

bool Relatives::read_if_due(Recorder& recorder, std::uint64_t now, process::Shared* own) noexcept {
    if (now < next_ns_ || recorder.is_group_full()) return false;
    const std::uint64_t began_ns = process::thread_ns();
    find();
    const bool is_due = (have_changed() || now >= calm_until_ns_) && (count_ > 1 || last_count_ > 1);
    const std::uint64_t checked_ns = process::thread_ns() - began_ns;
    spent_ns_ += checked_ns;
    const bool is_soon = now >= read_from_ns_ || news_ * kFewMore >= pages_;
    const bool is_own_known = is_due && is_soon && read(recorder, now, own);
    if (!is_own_known && (copied_ - told_) * kFewCopied >= pages_) tell_copied(recorder, now);
    if (is_own_known) read_from_ns_ = now + kPause * last_ns_;
    const std::uint64_t pause_ns = checked_ns * (spent_ns_ < kBurstNs ? kBurstPause : 2 * kShare);
    next_ns_ = now + std::max({kLeastPauseNs, now / 512, pause_ns});
    return is_own_known;
}

void Relatives::read_last(Recorder& recorder, std::uint64_t now) noexcept {
    if (recorder.is_group_full()) return;
    find();
    process::Shared own;
    read(recorder, now, &own);
}

bool Relatives::read(Recorder& recorder, std::uint64_t now, process::Shared* own) noexcept {
    if (spent_ns_ + last_ns_ > kBurstNs + now / kShare) return false;
    const std::uint64_t began_ns = process::thread_ns();
    bool is_own_known = false, has_read = false, is_delayed = false;
    for (int i = 0; i < count_; ++i) {
        process::Shared shared;
        const std::uint64_t from_ns = process::monotonic_ns(), used_ns = process::thread_ns();
        const bool is_full = recorder.is_group_full();
        if (!is_full && !process::read_shared(&shared, processes_[i])) continue;
        const std::uint64_t until = recorder.now_ns();
        // Where this thread had to wait, the figures may be of a time before a fork, or after it.
        if (is_full || process::was_delayed(from_ns, process::thread_ns() - used_ns)) {
            is_delayed = true;
            continue;
        }
        of_[i].note_reading((shared.resident_bytes - shared.private_bytes) / static_cast<std::int64_t>(kPage), now);
        has_read = true;
        if (i == 0) is_own_known = true, *own = shared;
        recorder.note_relative({until, shared.resident_bytes, shared.excess_bytes,
                                shared.resident_bytes - shared.private_bytes, shared.mapped_bytes,
                                shared.mapped_excess_bytes, static_cast<std::uint32_t>(processes_[i]), 0});
    }
    // What those that were not read have copied is counted from the reading before on, not from this one.
    if (is_delayed && copied_ > told_) tell_copied(recorder, now);
    last_count_ = count_;
    read_pages_ = pages_;
    if (has_read) copied_ = news_ = told_ = 0;
    are_others_ = is_delayed;  // then they are read again
    last_ns_ = process::thread_ns() - began_ns;
    spent_ns_ += last_ns_;
    calm_until_ns_ = now + kCalmShare * last_ns_;
    return is_own_known;
}

void Relatives::tell_copied(Recorder& recorder, std::uint64_t now) noexcept {
    recorder.note_relative({now, 0, copied_ * static_cast<std::int64_t>(kPage), 0, 0, 0, 0, 0});
    told_ = copied_;
}

}  // namespace hiwater
