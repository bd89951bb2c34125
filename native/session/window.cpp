// Recordings inside a recording: windows of it, whose ends are ends of slices. The first slice of a window is an
// instant one: what was live as it began.
#include <errno.h>

#include "session/recorder.h"

namespace hiwater {

std::uint64_t Recorder::begin_window() noexcept {
    std::uint64_t now = 0;
    if_recorded([&] {
        now = now_ns();
        accounts_.take_instant_slice(now);
    });
    return now;
}

Accounts::Figures Recorder::window_peak(std::uint64_t start_ns) noexcept {
    BusyGuard busy;
    Hold hold(lock_);
    return file_.is_open() ? accounts_.highest_since(start_ns) : Accounts::Figures{};
}

int Recorder::write_window(const char* path, std::uint64_t start_ns) noexcept {
    BusyGuard busy;
    capture::CaptureCopy copy;
    int error = begin_copy(&copy, path);
    if (error != 0) return error;
    error = ENOENT;
    if_there_is_room([&] {
        Hold hold(lock_);
        if (!file_.is_open() || only_counters_) return;
        error = ENOSPC;
        const std::uint64_t now = now_ns();
        show_last_names();
        accounts_.close_slice(now);
        append_fact("window_ns", std::to_string(start_ns) + ":" + std::to_string(now));
        error = copy.fill(file_, now);
        append_fact("window_ns", "");  // of the last facts of a name a reader takes one: this capture is no window
    });
    return error != 0 ? error : copy.end();
}

}  // namespace hiwater
