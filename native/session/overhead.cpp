// The recorder's own pages: how many there are, what the resident peak is without them, and how they stay few.
#include <algorithm>
#include <utility>

#include "base/process.h"
#include "session/children.h"
#include "session/recorder.h"
#include "session/sampler.h"

namespace hiwater {

// `peak_bytes`: the kernel's peak, 0 where it was not read. From any thread, as the recording ends.
void Recorder::note_resident(std::int64_t resident_bytes, std::int64_t peak_bytes) noexcept {
    capture::Header& h = file_.header();
    if (h.resident_exact == 0) peak_bytes = 0;
    UninterruptedHold hold(peak_lock_);
    program_peak_.sample(resident_bytes, peak_bytes, put_pages);
    h.resident_peak_bytes = std::max({h.resident_peak_bytes, resident_bytes, peak_bytes});
    if (resident_bytes >= 0) {
        h.resident_last_bytes = resident_bytes;
        h.overhead_last_bytes = static_cast<std::uint64_t>(program_peak_.overhead_at(put_pages.least()));
    }
    store_program_peak();
}

void Recorder::store_program_peak() noexcept {
    capture::Header& h = file_.header();
    h.program_peak_bytes = last_program_peak_ = std::max<std::int64_t>(0, program_peak_.bytes());
    // The program may use all that hiwater's code has loaded, except hiwater's library.
    const std::int64_t code_error = code_file_bytes_ + code_anonymous_bytes_ - library_bytes_;
    const std::int64_t arena_error = last_program_peak_ > peak_before_freed_arenas_ ? freed_arena_bytes_ : 0;
    h.program_peak_error_bytes = h.resident_exact == 0 ? 0 : program_peak_.error_bytes() + code_error + arena_error;
    h.overhead_bytes = static_cast<std::uint64_t>(program_peak_.overhead_bytes());
}

void Recorder::note_arena_freed(std::size_t bytes) noexcept {
    UninterruptedHold hold(peak_lock_);
    if (std::exchange(freed_arena_bytes_, static_cast<std::int64_t>(bytes)) == 0)
        peak_before_freed_arenas_ = last_program_peak_;
}

void Recorder::note_resident_peak_before_reset(std::int64_t peak_bytes) noexcept {
    if (!is_on() || only_counters_) return;
    BusyGuard busy;
    Hold hold(lock_);
    if (file_.is_open()) note_resident(-1, peak_bytes);
}

void Recorder::note_loaded_code(std::int64_t bytes) noexcept {
    if (!is_on() || only_counters_) return;
    BusyGuard busy;
    {
        UninterruptedHold hold(peak_lock_);
        code_anonymous_bytes_ += bytes;
    }
    count_own_pages();
}

OwnPages Recorder::count_own_pages() noexcept {
    const OwnPages own = OwnPagesCount().read(sampler::has_relatives());
    UninterruptedHold hold(peak_lock_);
    if (library_bytes_ != 0) code_file_bytes_ += own.library_bytes - std::exchange(library_bytes_, own.library_bytes);
    program_peak_.count(own, code_file_bytes_ + code_anonymous_bytes_);
    file_.header().overhead_last_bytes = static_cast<std::uint64_t>(program_peak_.overhead_at(put_pages.least()));
    store_program_peak();
    return own;
}

// For the sampler's thread. Most forked children are over before the first count, which would cost them more than what
// they do.
void Recorder::count_own_pages_if_due(std::uint64_t now) noexcept {
    constexpr std::uint64_t kShortestNs = 25'000'000, kPause = 200;
    if (only_counters_ || !until_count_.is_over(now)) return;
    if (children.was_forked() && now < kShortestNs) return;
    const std::uint64_t began_ns = process::thread_ns();
    const OwnPages own = count_own_pages();
    until_count_.begin(now, kPause * (process::thread_ns() - began_ns), std::max(kShortestNs, now / 64));
    give_pages_back_if_due(now, own);
}

// Before pages go that were counted. The kernel's peak is read, too: one that came before is known to have had them.
void Recorder::take_for_put(std::int64_t bytes) noexcept {
    {
        UninterruptedHold hold(peak_lock_);
        program_peak_.take_for_put(bytes, put_pages);
    }
    process::Resident resident;
    if (process::read_status(&resident)) note_resident(resident.now_bytes, resident.peak_bytes);
}

// Most call paths of a program are those of its imports, and are never met again. Their pages leave the process, except
// those of accounts that changed lately.
void Recorder::give_pages_back_if_due(std::uint64_t now, const OwnPages& own) noexcept {
    constexpr std::uint64_t kShortlyNs = 5'000'000;
    const bool near_promise = GiveBack::is_near_promise(own.bytes, last_program_peak_);
    if (!give_back_.is_due(now, own.capture_bytes, file_.put_bytes(), near_promise)) return;
    const std::uint64_t began_ns = process::thread_ns();
    const auto bytes = static_cast<std::size_t>(own.capture_bytes);
    std::int64_t put_bytes = 0;
    {
        Hold hold(lock_);
        if (!is_on()) return;
        take_for_put(own.capture_bytes);
        put_pages.begin_removing(bytes);
        file_.give_unused_pages_back([this](auto... page) { return accounts_.uses_page(page...); });
        put_pages.end_removing(bytes);
        put_bytes = file_.put_bytes();
    }
    const std::uint64_t took_ns = process::thread_ns() - began_ns;
    give_back_.note(now, took_ns, own.capture_bytes, count_own_pages().capture_bytes, put_bytes);
    until_count_.begin(now, 0, kShortlyNs);
}

}  // namespace hiwater
