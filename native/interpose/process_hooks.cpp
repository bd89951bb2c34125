#include "interpose/process_hooks.h"

#include <dlfcn.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/errno_kept.h"
#include "base/kept_mappings.h"
#include "base/process.h"
#include "base/raw_calls.h"
#include "base/signals_blocked.h"
#include "session/children.h"
#include "session/main_thread_call.h"
#include "session/recorder.h"
#include "residency/malloc_totals.h"
#include "residency/resident_watch.h"
#include "session/sampler.h"
#include "interpose/exit_callback.h"
#include "interpose/python_threads.h"
#include "interpose/slots.h"

namespace hiwater::interpose {

namespace {

pid_t hook_fork();
long hook_syscall(long number, long a, long b, long c, long d, long e, long f);

struct ThreadStart {
    void* (*routine)(void*);
    void* argument;
    std::uint32_t node, session;
    Starters starters;
    ThreadName name;
};

constinit KeptMappings kept_starts;

// Never from the program's heap, where it would show.
ThreadStart* take_start() noexcept {
    void* const kept = kept_starts.take();
    return static_cast<ThreadStart*>(kept != nullptr ? kept : map_pages(kPage));
}
void give_back(ThreadStart* start) noexcept {
    if (!kept_starts.keep(start)) unmap_pages(start, kPage);
}

void* run_thread(void* packed) {
    ThreadStart start = *static_cast<ThreadStart*>(packed);
    give_back(static_cast<ThreadStart*>(packed));
    recorder().adopt_thread(start.node, start.session, start.starters, start.name);
    return start.routine(start.argument);
}

int hook_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*routine)(void*), void* argument) {
    if (!recording() || tls.covered != 0 || Recorder::is_inside())
        return real<hook_pthread_create>(thread, attributes, routine, argument);
    const ErrnoKept kept;
    ThreadStart* const packed = take_start();
    if (packed == nullptr) return real<hook_pthread_create>(thread, attributes, routine, argument);
    *packed = {};
    packed->routine = routine;
    packed->argument = argument;
    packed->session = recorder().session();
    packed->starters = (tls.thread == nullptr ? Starters() : tls.thread->starters).with(hw_own_state());
    // A Python thread has frames of its own from the first; a native one hangs under the stack that made it.
    if (in_interpreter(reinterpret_cast<const void*>(routine))) {
        name_started_thread(&packed->name);
    } else {
        packed->node = recorder().thread_start_node();
    }
    const int error = [&] {
        const BusyGuard busy;  // the thread's control block is the C library's
        return real<hook_pthread_create>(thread, attributes, run_thread, packed);
    }();
    if (error != 0) give_back(packed);
    return error;
}

// From Python 3.14 on the interpreter gives the system the first bytes of the names that it has: these are known
// better.
void note_system_name(pthread_t thread, const char* name, const void* caller) noexcept {
    const ErrnoKept kept;
    if (recording() && !in_interpreter(caller)) recorder().name_thread(thread, name, NameOf::system);
}

// A filter of system calls may end the process for a call that only we make. What we can do without is not called from
// then on.
template <typename Call>
auto around_filter(Call call) noexcept {
    if (!recording() || Recorder::is_inside()) return call();
    {
        BusyGuard busy;
        PendingSignals::expect_filter();
        recorder().lock().expect_filter();
    }
    const auto result = call();
    if (result == 0) return result;
    BusyGuard busy;
    PendingSignals::expect_no_filter();
    recorder().lock().expect_no_filter();
    return result;
}

// Strict mode leaves the calling thread read, write and its exit: the kernel ends it for any other call, such as a wait
// for the recorder's lock, or for malloc's while the recorder's thread has it. So nothing of the calling thread is
// recorded from then on.
template <typename Call>
auto around_strict_mode(Call call) noexcept {
    ++tls.busy;
    tls.renew_ready();
    residency::stop_malloc_totals();
    MainThreadCall::stop_on_main_thread();
    const auto result = call();
    if (result == 0) return result;
    MainThreadCall::resume();
    residency::resume_malloc_totals();
    --tls.busy;
    tls.renew_ready();
    return result;
}

// hook_syscall() has no frame: what needs one is apart from it, and its last call is a jump.
#if defined(__clang__)
#define HIWATER_APART [[gnu::noinline]]
#define HIWATER_JUMP [[clang::musttail]]
#else
#define HIWATER_APART [[gnu::noipa]]
#define HIWATER_JUMP
#endif

HIWATER_APART long set_filter(long number, long a, long b, long c, long d, long e, long f) {
    const auto set = [&] { return real<hook_syscall>(number, a, b, c, d, e, f); };
    return a == SECCOMP_SET_MODE_STRICT ? around_strict_mode(set) : around_filter(set);
}

// Whether a system call makes a child that continues here, in a copy of this process's memory.
bool makes_child_here(long number, long a, long b) noexcept {
#if defined(SYS_fork)
    if (number == SYS_fork) return true;
#endif
    return number == SYS_clone && (a & CLONE_VM) == 0 && b == 0;
}

void after_fork_in_child() noexcept;

// A child that is made without fork handlers.
template <typename Call>
auto around_raw_fork(Call call) noexcept {
    residency::hold_malloc_totals_for_fork();
    const auto child = call();
    if (child == 0) {
        after_fork_in_child();
    } else {
        residency::release_malloc_totals_after_fork();
    }
    return child;
}

HIWATER_APART long make_child(long number, long a, long b, long c, long d, long e, long f) {
    return around_raw_fork([&] { return real<hook_syscall>(number, a, b, c, d, e, f); });
}

// Goes on as a jump: a system call that makes a child with a stack of its own returns there past any frame of ours.
long hook_syscall(long number, long a, long b, long c, long d, long e, long f) {
    if (number == SYS_seccomp) [[unlikely]]
        return set_filter(number, a, b, c, d, e, f);
    if (makes_child_here(number, a, b)) [[unlikely]]
        return make_child(number, a, b, c, d, e, f);
    HIWATER_JUMP return real<hook_syscall>(number, a, b, c, d, e, f);
}

int hook_prctl(int option, ...) {
    va_list arguments;
    va_start(arguments, option);
    const unsigned long a = va_arg(arguments, unsigned long), b = va_arg(arguments, unsigned long);
    const unsigned long c = va_arg(arguments, unsigned long), d = va_arg(arguments, unsigned long);
    va_end(arguments);
    const auto set = [&] { return real<hook_prctl>(option, a, b, c, d); };
    if (option == PR_SET_SECCOMP) return a == SECCOMP_MODE_STRICT ? around_strict_mode(set) : around_filter(set);
    const int result = set();
    if (option == PR_SET_NAME && result == 0) {
        char name[16] = {};  // the kernel keeps 15 bytes
        ::strncpy(name, reinterpret_cast<const char*>(a), sizeof name - 1);
        note_system_name(::pthread_self(), name, __builtin_return_address(0));
    }
    return result;
}

int hook_pthread_setname_np(pthread_t thread, const char* name) {
    const int error = real<hook_pthread_setname_np>(thread, name);
    if (error == 0) note_system_name(thread, name, __builtin_return_address(0));
    return error;
}

void add_fork_marker(pid_t child) noexcept {
    if (recording()) recorder().on_marker(capture::MarkerKind::fork, static_cast<std::uint64_t>(child));
}

char* g_single_threaded = nullptr;  // the C library's own __libc_single_threaded

// With a second thread in the process, glibc's fork waits for the locks of malloc and of stdio. A signal handler that
// forks inside malloc would then wait for its own thread, which it would not without hiwater. Where all other threads
// are hiwater's, which hold neither lock during a fork (residency/malloc_totals.h), the C library's word
// __libc_single_threaded is set during the fork.
bool is_alone_but_for_ours() noexcept {
    const ErrnoKept kept;
    const int ours = (sampler::is_running() ? 1 : 0) + (resident_watch::is_running() ? 1 : 0);
    return ours != 0 && process::read_stat().threads == 1 + ours;
}

pid_t fork_as_if_alone() {
    char* const word = g_single_threaded;
    if (word == nullptr || *word != 0 || !is_alone_but_for_ours()) return real<hook_fork>();
    *word = 1;
    const pid_t child = real<hook_fork>();
    if (child != 0) *word = 0;
    return child;
}

// A fork by the interpreter's own code, in which CPython counts threads: the sampler's must be gone. The child has a
// recording of its own if children are recorded. Nothing of the kind is done for a fork by other code, which may be a
// signal's handler that came in the middle of malloc: to end a thread, or to take memory, is not for handlers.
template <typename Call>
pid_t around_fork(const void* caller, Call call) {
    const bool is_interpreters = recording() && !Recorder::is_inside() && in_interpreter(caller);
    const bool is_paused = is_interpreters && sampler::pause_for_fork();
    const std::int64_t inherited_bytes = is_interpreters ? recorder().inheritable_bytes() : 0;
    const process::Moment began;
    const pid_t child = call();
    if (child == 0 && is_interpreters) {
        const ErrnoKept kept;
        recorder().record_child(inherited_bytes, began);
    }
    if (child != 0 && is_paused) {
        const ErrnoKept kept;  // of a fork that failed
        sampler::note_forked();
    }
    if (child > 0) add_fork_marker(child);
    return child;
}

// In the child of a fork. If a signal handler forked during an event, that event continues in the child.
void after_fork_in_child() noexcept {
    const ErrnoKept kept;
    residency::forget_malloc_totals_in_child();
    sampler::forget_in_child();
    recorder().become_unrecorded_child();
}

pid_t hook_fork() { return around_fork(__builtin_return_address(0), fork_as_if_alone); }

int hook_forkpty(int* master, char* name, const termios* attributes, const winsize* size) {
    return around_fork(__builtin_return_address(0), [&] { return real<hook_forkpty>(master, name, attributes, size); });
}

// The fork for signals' handlers, which calls no handlers of forks.
pid_t hook__Fork() {
    const pid_t child = around_raw_fork([] { return real<hook__Fork>(); });
    if (child > 0) add_fork_marker(child);
    return child;
}

// A child of a fork has no callback that ends its recording. What was freed unseen is not looked for: most such
// children are short.
void end_child(int code) {
    constexpr std::uint64_t kWorthSnapshot = 1'000'000'000;  // of its time: a snapshot may take some fifty milliseconds
    sampler::stop();
    if (recorder().now_ns() >= kWorthSnapshot) recorder().take_residency_snapshot();
    recorder().stop(code, false, false, true);
}

// The callback is Python: only the interpreter's own code (os._exit) may be about to leave where Python can be run. A
// signal's handler may have come in anywhere, also where the thread has the GIL.
void before_exit(int code, const void* caller) {
    if (!recording()) return;
    if (!Recorder::is_inside() && in_interpreter(caller)) {
        recorder().expect_end(capture::EndedBy::exit_call);
        call_exit_callback(code & 0xff);
        if (recording() && children.is_child()) end_child(code & 0xff);
    }
    if (recording()) recorder().note_exit({capture::EndedBy::exit_call, code & 0xff});
}

template <int kEntry>  // _exit and _Exit
void hook_exit(int code) {
    before_exit(code, __builtin_return_address(0));
    real<hook_exit<kEntry>>(code);
    __builtin_unreachable();
}

}  // namespace

void add_process_hooks(std::vector<Hook>* hooks) {
    constexpr auto of = Hook::Of::process;
    hooks->insert(hooks->end(), {
                                    hook_of<hook_pthread_create>("pthread_create", of),
                                    hook_of<hook_prctl>("prctl", of),
                                    hook_of<hook_syscall>("syscall", of),
                                    hook_of<hook_pthread_setname_np>("pthread_setname_np", of),
                                    hook_of<hook_fork>("fork", of),
                                    hook_of<hook__Fork>("_Fork", of),
                                    hook_of<hook_forkpty>("forkpty", of),
                                    hook_of<hook_exit<0>>("_exit", of),
                                    hook_of<hook_exit<1>>("_Exit", of),
                                });
}

void prepare_process_hooks() noexcept {
    void* library = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return;
    g_single_threaded = static_cast<char*>(::dlsym(library, "__libc_single_threaded"));
    ::dlclose(library);
}

void watch_forks() noexcept {
    static const int once = [] {
        residency::prepare_malloc_totals();
        platform::wipe_on_fork(&g_switches, sizeof g_switches);
        return ::pthread_atfork(residency::hold_malloc_totals_for_fork, residency::release_malloc_totals_after_fork,
                                after_fork_in_child);
    }();
    (void)once;
}

}  // namespace hiwater::interpose
