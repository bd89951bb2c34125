#include "session/last_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/errno_kept.h"
#include "base/pages.h"
#include "base/process.h"
#include "base/raw_calls.h"
#include "base/signals_blocked.h"
#include "base/uncancelled.h"
#include "session/recorder.h"

namespace hiwater {

namespace {

constexpr std::size_t kStackBytes = 32 * 1024;  // for each of two processes in the memory of this one
constexpr int kLongestMs = 10'000;

struct Call {
    char* const* arguments;
    char* stack_end;
    int answer;
};

// The functions of a child in the memory of this process, which waits meanwhile: it takes no memory and no lock.
int make(int (*function)(void*), char* stack_end, Call* call) noexcept {
    return ::clone(function, stack_end, CLONE_VM | CLONE_VFORK, call);  // no signal tells this process of its end
}

int execute(void* data) {
    const Call& call = *static_cast<Call*>(data);
    struct sigaction standard{}, now{};
    standard.sa_handler = SIG_DFL;
    for (int number = 1; number < NSIG; ++number)
        if (::sigaction(number, nullptr, &now) == 0 && now.sa_handler != SIG_IGN)
            ::sigaction(number, &standard, nullptr);
    sigset_t blocked;  // what ends this process may be sent to all that it is among
    ::sigemptyset(&blocked);
    for (const int number : {SIGTERM, SIGHUP, SIGINT, SIGQUIT}) ::sigaddset(&blocked, number);
    ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
    rlimit space{};
    if (::getrlimit(RLIMIT_AS, &space) == 0) {
        space.rlim_cur = space.rlim_max;
        ::setrlimit(RLIMIT_AS, &space);
    }
    // Who reads the program's output waits for its end, and not for the end of this process.
    raw::close(STDIN_FILENO);
    if (raw::syscall(SYS_dup3, STDERR_FILENO, STDOUT_FILENO, 0) < 0) raw::close(STDOUT_FILENO);
    raw::fcntl(call.answer, F_SETFD, 0);
    ::execv(call.arguments[0], call.arguments);
    ::_exit(127);
}

// Leaves its own child to the first process: the program waits for no process that it did not make.
int leave_alone(void* data) {
    auto* const call = static_cast<Call*>(data);
    ::_exit(make(execute, call->stack_end - kStackBytes, call) < 0 ? 127 : 0);
}

// Waits for the byte at the other end, and closes this one.
bool answered(int fd) noexcept {
    char byte = 0;
    const auto now_ms = [] { return static_cast<int>(process::monotonic_ns() / 1'000'000 % 1'000'000'000); };
    const int began_ms = now_ms();
    for (;;) {
        pollfd one{fd, POLLIN, 0};
        const int ready = ::poll(&one, 1, std::max(0, kLongestMs - (now_ms() - began_ms)));
        if (ready < 0 && errno == EINTR) continue;
        const bool is_answered = ready > 0 && raw::read(fd, &byte, 1) == 1;
        raw::close(fd);
        return is_answered;
    }
}

}  // namespace

void LastLines::begin(const std::vector<std::string>& command) {
    pid_ = 0;
    unmap_pages(std::exchange(arguments_, nullptr), bytes_);
    if (command.empty()) return;
    const std::size_t pointers = (command.size() + 2) * sizeof(char*);
    bytes_ = pointers;
    for (const std::string& word : command) bytes_ += word.size() + 1;
    bytes_ = round_up(bytes_, kPage);
    if (stack_ == nullptr) stack_ = map_pages(2 * kStackBytes, Use::kept);
    arguments_ = static_cast<char**>(map_pages(bytes_, Use::kept));
    if (arguments_ == nullptr || stack_ == nullptr) return;
    char* text = reinterpret_cast<char*>(arguments_) + pointers;
    char** next = arguments_;
    for (const std::string& word : command) {
        *next++ = text;
        text = std::copy_n(word.c_str(), word.size() + 1, text);
    }
    *next++ = descriptor_;
    *next = nullptr;
    pid_ = ::getpid();
}

bool LastLines::write() noexcept {
    const ErrnoKept kept;
    Uncancelled whole;
    const int answer = start();
    return answer >= 0 && answered(answer);
}

void LastLines::write_at_death() noexcept {
    const ErrnoKept kept;
    const int answer = start();
    if (answer < 0) return;
    constexpr int kOwnThreads = 1;  // that of the sampler
    if (process::read_stat().threads <= 1 + kOwnThreads || ::getppid() <= 1) {
        answered(answer);
    } else {
        raw::close(answer);
    }
}

int LastLines::start() noexcept {
    // A filter of system calls may end a process for what it does not expect. Several threads may die at once.
    pid_t process = ::getpid();
    if (recorder().are_calls_filtered() || !pid_.compare_exchange_strong(process, 0)) return -1;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return -1;
    if (ends[1] <= STDERR_FILENO) {  // the program has closed its standard streams
        raw::close(ends[0]);
        raw::close(ends[1]);
        return -1;
    }
    ::snprintf(descriptor_, sizeof descriptor_, "%d", ends[1]);
    int status = -1;
    {
        const SignalsBlocked blocked(SignalsBlocked::But::none);
        Call call{arguments_, static_cast<char*>(stack_) + 2 * kStackBytes, ends[1]};
        const int child = make(leave_alone, call.stack_end, &call);
        while (child > 0 && ::waitpid(child, &status, __WALL) < 0 && errno == EINTR) continue;
    }
    raw::close(ends[1]);
    if (status == 0) return ends[0];
    raw::close(ends[0]);
    return -1;
}

}  // namespace hiwater
