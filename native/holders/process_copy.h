// Work on a copy of the process, as it is at one instant, while the process itself goes on.
//
// The copy is a child that no fork handler, and nobody who waits for children or for SIGCHLD, notices. It shares pages
// with the process until one of the two writes to them. Its files are closed at once, it answers no signal, leaves no
// core file, and ends with the thread that made it.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/process.h"
#include "base/raw_calls.h"
#include "base/signals_blocked.h"
#include "base/uncopied.h"

namespace hiwater::holders {

class ProcessCopy : Uncopied {
public:
    enum class End { finished, crashed, timed_out };

    // Work must need no lock, no heap and no file: another thread may have been anywhere when the copy was made.
    // Returns 0 or an errno value.
    template <typename Work>
    int start(const Work& work) noexcept {
        const SignalsBlocked blocked(SignalsBlocked::But::none);
        const pid_t maker = static_cast<pid_t>(raw::syscall(SYS_getpid));
        const long made = raw::syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr);  // exit signal 0
        if (made == 0) {
            leave_process(maker);
            work();
            leave(0);
        }
        const int error = made < 0 ? errno : 0;
        if (made > 0) pid_ = static_cast<pid_t>(made);
        began_ns_ = process::monotonic_ns();
        return error;
    }

    // After start(), until the copy has ended. One that goes on for longer is ended.
    void wait(std::uint64_t most_ns) noexcept {
        for (timespec pause{0, 500'000}; !has_ended(most_ns);) {
            raw::syscall(SYS_nanosleep, &pause, nullptr);
            if (pause.tv_nsec < 8'000'000) pause.tv_nsec *= 2;
        }
    }
    // The same for a caller that asks now and then.
    bool has_ended(std::uint64_t most_ns) noexcept {
        if (pid_ == 0) return true;
        int status = 0;
        if (is_waited_for(&status, WNOHANG)) {
            end_ = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? End::finished : End::crashed;
            signal_ = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        } else if (process::monotonic_ns() - began_ns_ >= most_ns) {
            kill();
        } else {
            return false;
        }
        pid_ = 0;
        return true;
    }
    End end() const noexcept { return end_; }
    int signal() const noexcept { return signal_; }  // that it died of; 0: none
    ~ProcessCopy() {
        if (pid_ != 0) kill();
    }

private:
    void kill() noexcept {
        raw::syscall(SYS_kill, pid_, SIGKILL);
        int status = 0;
        while (!is_waited_for(&status, 0)) {
        }
        end_ = End::timed_out;
    }
    static void leave_process(pid_t maker) noexcept {
        raw::syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if (raw::syscall(SYS_getppid) != maker) leave(1);
        raw::syscall(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
        // Should memory run out meanwhile, the copy goes first, and not the program.
        const long score = raw::syscall(SYS_openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (score >= 0) raw::syscall(SYS_write, score, "1000", 4);
#if defined(SYS_close_range)
        if (raw::syscall(SYS_close_range, 0U, ~0U, 0U) == 0) return;
#endif
        for (unsigned descriptor = 0; descriptor < 4096; ++descriptor) raw::syscall(SYS_close, descriptor);
    }
    [[noreturn]] static void leave(int code) noexcept {
        for (;;) raw::syscall(SYS_exit_group, code);
    }
    // A wait that ended for another reason than the copy's end is taken for its end: then somebody else has waited for
    // it.
    bool is_waited_for(int* status, int options) const noexcept {
        const long waited = raw::syscall(SYS_wait4, pid_, status, options | __WALL, nullptr);
        return waited == pid_ || (waited < 0 && errno != EINTR);
    }

    pid_t pid_ = 0;  // 0: it has ended
    std::uint64_t began_ns_ = 0;
    End end_ = End::crashed;
    int signal_ = 0;
};

}  // namespace hiwater::holders
