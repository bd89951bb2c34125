#include "session/fatal_signals.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "base/errno_kept.h"
#include "base/kept_mappings.h"
#include "base/pages.h"
#include "base/raw_calls.h"
#include "base/signal_defaults.h"
#include "base/static_tls.h"
#include "session/children.h"
#include "session/last_lines.h"
#include "session/recorder.h"

namespace hiwater::fatal_signals {

namespace {

constexpr int kLast = 64;

std::atomic<pid_t> g_process{0};  // whose signals are answered here; 0: none
std::atomic<bool> g_is_fatal_error{false};
std::atomic_flag g_changing = ATOMIC_FLAG_INIT;
struct sigaction g_defaults[kLast + 1];  // as the program set them: flags and mask, which a default ignores

constexpr std::size_t kStackBytes = 64 * 1024;
HIWATER_STATIC_TLS thread_local void* t_stack = nullptr;
constinit KeptMappings g_kept_stacks;

// Whether the default ends the process, and the C library does not keep the signal for itself.
bool is_fatal(int number) noexcept {
    switch (number) {
        case SIGKILL:
        case SIGSTOP:
        case SIGBUS:  // see capture/file_guard.h
        case SIGCHLD:
        case SIGCONT:
        case SIGTSTP:
        case SIGTTIN:
        case SIGTTOU:
        case SIGURG:
        case SIGWINCH:
            return false;
        default:
            return number > 0 && number <= kLast && (number < 32 || number >= SIGRTMIN);
    }
}

// The instruction that caused it runs again when the handler returns.
bool is_repeated_fault(int number, const siginfo_t& info) noexcept {
    return info.si_code > 0 && (number == SIGSEGV || number == SIGILL || number == SIGFPE);
}

// In no set of ranges: it is never touched while the program lives. Null when the kernel refuses.
void* take_stack() noexcept {
    if (void* const kept = g_kept_stacks.take()) return kept;
    void* const made = map_untold(kPage + kStackBytes);
    if (made == MAP_FAILED) return nullptr;
    own_limit.add(kPage + kStackBytes);
    raw::mprotect(made, kPage, PROT_NONE);
    return made;
}

bool is_init() noexcept { return ::getpid() == 1; }  // the kernel ends it by faults alone

void on_fatal(int number, siginfo_t* info, void* context) {
    const ErrnoKept kept;
    if (is_init() && !is_repeated_fault(number, *info)) return;
    note(number, *info, context);
    last_lines.write_at_death();
    do_signal_default(number, info, is_repeated_fault(number, *info));
}

bool is_ours(const struct sigaction& action) noexcept {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_fatal;
}

// Under the lock, in the recorded process: the signal has its default.
void install(int number, const struct sigaction& standard) noexcept {
    g_defaults[number] = standard;
    struct sigaction ours{};
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    ours.sa_sigaction = on_fatal;
    ::sigfillset(&ours.sa_mask);
    ::sigdelset(&ours.sa_mask, SIGBUS);  // comes if the capture was truncated: the handler writes to its header
    ::sigaction(number, &ours, nullptr);
}

bool is_begun() noexcept { return g_process.load(std::memory_order_acquire) == ::getpid(); }

std::uintptr_t stack_pointer(const void* context) noexcept {
    const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    return static_cast<std::uintptr_t>(machine.gregs[REG_RSP]);
#else
    return machine.sp;
#endif
}

// Around the stack pointer all is mapped but what lies beyond the stack's end.
bool is_stack_overflow(int number, const siginfo_t& info, const void* context) noexcept {
    constexpr std::uintptr_t kNear = 64 * 1024;
    if (number != SIGSEGV || (info.si_code != SEGV_MAPERR && info.si_code != SEGV_ACCERR)) return false;
    const auto at = reinterpret_cast<std::uintptr_t>(info.si_addr);
    const std::uintptr_t stack = stack_pointer(context);
    return at + kNear >= stack && at < stack + kNear;
}

}  // namespace

void begin() noexcept {
    g_is_fatal_error.store(false, std::memory_order_relaxed);
    g_process.store(::getpid(), std::memory_order_release);
    give_stack();
    const SignalChange changing(g_changing);
    for (int number = 1; number <= kLast; ++number) {
        struct sigaction now{};
        if (is_fatal(number) && ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
            install(number, now);
    }
}

void end() noexcept {
    if (g_process.load(std::memory_order_acquire) == 0) return;
    const SignalChange changing(g_changing);
    g_process.store(0, std::memory_order_release);
    for (int number = 1; number <= kLast; ++number) {
        struct sigaction now{};
        if (is_fatal(number) && ::sigaction(number, nullptr, &now) == 0 && is_ours(now))
            ::sigaction(number, &g_defaults[number], nullptr);
    }
}

void leave() noexcept { g_process.store(0, std::memory_order_release); }

// Where children are recorded, the handlers stay for begin(), which is called next: to take all out and put them in
// again is two hundred calls. In a child that is not recorded they do what the default does.
void end_in_child() noexcept {
    g_changing.clear(std::memory_order_relaxed);
    if (!children.are_recorded()) return end();
    g_process.store(0, std::memory_order_release);
}

void expect_fatal_error() noexcept { g_is_fatal_error.store(true, std::memory_order_relaxed); }

void note(int number, const siginfo_t& info, const void* context) noexcept {
    auto how = capture::EndedBy::signal;
    if (number == SIGABRT && g_is_fatal_error.load(std::memory_order_relaxed)) how = capture::EndedBy::fatal_error;
    if (is_stack_overflow(number, info, context)) how = capture::EndedBy::stack_overflow;
    if (is_begun()) recorder().note_exit({how, -1, number});
}

int program_action(int number, const struct sigaction* action, struct sigaction* old) noexcept {
    if (!is_fatal(number)) return ::sigaction(number, action, old);
    struct sigaction wanted{}, before{};
    if (action != nullptr) wanted = *action;  // here a bad pointer faults as in the C library
    {
        const SignalChange changing(g_changing);
        const int error = ::sigaction(number, action == nullptr ? nullptr : &wanted, &before);
        if (error != 0) return error;
        if (is_ours(before)) before = g_defaults[number];
        if (action != nullptr && wanted.sa_handler == SIG_DFL && is_begun()) {
            ::sigaction(number, nullptr, &wanted);  // as the C library completed it
            install(number, wanted);
        }
    }
    if (old != nullptr) *old = before;
    return 0;
}

SignalHandler program_signal(int number, SignalHandler handler, SignalFunction real) noexcept {
    if (!is_fatal(number)) return real(number, handler);
    const SignalChange changing(g_changing);
    struct sigaction before{}, now{};
    ::sigaction(number, nullptr, &before);
    const SignalHandler old = real(number, handler);
    if (old != SIG_ERR && is_begun() && ::sigaction(number, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
        install(number, now);
    return old != SIG_ERR && is_ours(before) ? SIG_DFL : old;
}

int program_stack(const stack_t* stack, stack_t* old) noexcept {
    const int error = ::sigaltstack(stack, old);
    if (error == 0 && old != nullptr && t_stack != nullptr && old->ss_sp == static_cast<char*>(t_stack) + kPage)
        *old = {nullptr, SS_DISABLE, 0};
    return error;
}

void give_stack() noexcept {
    const ErrnoKept kept;
    stack_t now{};
    if (t_stack != nullptr || !is_begun() || ::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0)
        return;
    t_stack = take_stack();
    if (t_stack == nullptr) return;
    const stack_t ours{static_cast<char*>(t_stack) + kPage, 0, kStackBytes};
    ::sigaltstack(&ours, nullptr);
}

void take_stack_back() noexcept {
    if (t_stack == nullptr) return;
    const ErrnoKept kept;
    stack_t now{};
    if (::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_ONSTACK) != 0) return;
    const stack_t none{nullptr, SS_DISABLE, 0};
    if (now.ss_sp == static_cast<char*>(t_stack) + kPage) ::sigaltstack(&none, nullptr);
    void* const given = std::exchange(t_stack, nullptr);
    if (is_begun() && g_kept_stacks.keep(given)) return;
    raw::munmap(given, kPage + kStackBytes);
    own_limit.remove(kPage + kStackBytes);
}

}  // namespace hiwater::fatal_signals
