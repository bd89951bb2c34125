// Jumps out of signal handlers, and threads that end in one, while the recorder is at work.
#include <signal.h>

#include "session/recorder.h"

namespace hiwater {

void Recorder::on_jump(std::uintptr_t to) noexcept {
    if (tls.covered != 0 && is_left_by_jump(tls.covered_at, to)) tls.covered = 0;
    Thread* const t = tls.thread;
    const std::uintptr_t event = t == nullptr ? 0 : t->ticket.active.load(std::memory_order_relaxed);
    const bool leaves_event = event != 0 && is_left_by_jump(event, to);
    const bool leaves_work = tls.busy != 0 && tls.busy_at != 0 && is_left_by_jump(tls.busy_at, to);
    if (leaves_event || leaves_work) abandon(t);
}

void Recorder::abandon(Thread* t) noexcept {
    fail(kJumped);
    lock_.abandon(t == nullptr ? nullptr : &t->ticket);
    tls.busy = 0;
    tls.renew_ready();
}

bool is_left_by_jump(std::uintptr_t from, std::uintptr_t to) noexcept {
    const ErrnoKept kept;
    stack_t other{};
    const bool has_other = ::sigaltstack(nullptr, &other) == 0 && (other.ss_flags & SS_DISABLE) == 0;
    const auto is_on_other = [&](std::uintptr_t at) {
        return has_other && at - reinterpret_cast<std::uintptr_t>(other.ss_sp) < other.ss_size;
    };
    return is_on_other(from) == is_on_other(to) ? to > from : is_on_other(from);
}

}  // namespace hiwater
