#include "base/main_thread_end.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/raw_calls.h"

namespace hiwater {

const char* stat_field(const char* text, int number) noexcept {
    const char* at = ::strrchr(text, ')');  // the name may hold spaces and brackets
    for (int field = 2; field < number && at != nullptr; ++field) at = ::strchr(at + 1, ' ');
    return at == nullptr ? nullptr : at + 1;
}

namespace {

// The main thread's status, as wait() has it; -1 where another thread runs, too.
int status_of_ended_main_thread() noexcept {
    char text[1024];
    const int file = raw::open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    const ssize_t n = raw::read(file, text, sizeof text - 1);
    raw::close(file);
    text[n > 0 ? n : 0] = '\0';
    const char *const state = stat_field(text, 3), *const threads = stat_field(text, 20);
    if (state == nullptr || *state != 'Z' || threads == nullptr || ::strtol(threads, nullptr, 10) != 2) return -1;
    const char* const status = stat_field(text, 52);
    return status == nullptr ? 0 : static_cast<int>(::strtol(status, nullptr, 10));
}

}  // namespace

void end_as_main_thread() noexcept {
    const int status = status_of_ended_main_thread();
    if (status < 0) return;
    if (const int number = status & 0x7f) {
        ::signal(number, SIG_DFL);
        sigset_t one;
        ::sigemptyset(&one);
        ::sigaddset(&one, number);
        ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
        raw::syscall(SYS_tgkill, ::getpid(), raw::syscall(SYS_gettid), number);
    }
    raw::syscall(SYS_exit, status >> 8);
}

}  // namespace hiwater
