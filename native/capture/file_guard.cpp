#include "capture/file_guard.h"

#include <errno.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/errno_kept.h"
#include "base/own_ranges.h"
#include "base/raw_calls.h"
#include "base/signal_defaults.h"
#include "base/static_tls.h"

namespace hiwater::capture::file_guard {

namespace {

constinit OwnRanges g_ranges;  // a capture of the greatest size has some 250 segments

std::atomic<bool> g_is_cut{false};
std::atomic<void (*)()> g_on_truncation{nullptr};
std::atomic<OnDeath> g_on_death{nullptr};
HIWATER_STATIC_TLS thread_local bool t_own_faults_only = false;

// What SIGBUS does for the program: in the slot that the number names, so that a handler finds it whole while it is
// changed.
struct sigaction g_program[2];
std::atomic<unsigned> g_current{0};
std::atomic<bool> g_is_begun{false};
std::atomic_flag g_changing = ATOMIC_FLAG_INIT;

const struct sigaction& program() noexcept { return g_program[g_current.load(std::memory_order_acquire)]; }

void set_program(const struct sigaction& action) noexcept {
    const unsigned next = 1 - g_current.load(std::memory_order_relaxed);
    g_program[next] = action;
    g_current.store(next, std::memory_order_release);
}

bool is_guarded(std::uintptr_t address) noexcept {
    bool is_in_one = false;
    g_ranges.each([&](const OwnRanges::Range& range) { is_in_one |= address >= range.start && address < range.end; });
    return is_in_one;
}

bool is_fault(const siginfo_t& info) noexcept {
    return info.si_code == BUS_ADRALN || info.si_code == BUS_ADRERR || info.si_code == BUS_OBJERR ||
           info.si_code == BUS_MCEERR_AR;
}

void hand_on(int number, siginfo_t* info, void* context) noexcept {
    const struct sigaction action = program();
    if (action.sa_handler == SIG_IGN && !is_fault(*info)) return;
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
        if (OnDeath on_death = g_on_death.load(std::memory_order_acquire)) on_death(number, *info, context);
        return do_signal_default(number, info, is_fault(*info));
    }
    if ((action.sa_flags & static_cast<int>(SA_RESETHAND)) != 0) {
        struct sigaction next = action;
        next.sa_handler = SIG_DFL;
        set_program(next);
    }
    if ((action.sa_flags & SA_SIGINFO) != 0) return action.sa_sigaction(number, info, context);
    action.sa_handler(number);
}

void on_bus(int number, siginfo_t* info, void* context) {
    const ErrnoKept kept;
    if (info->si_code == BUS_ADRERR && is_guarded(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
        cut();
    } else if (t_own_faults_only && !is_fault(*info)) {
        ::sigaddset(&static_cast<ucontext_t*>(context)->uc_sigmask, number);
        siginfo_t again = *info;
        again.si_code = SI_QUEUE;  // the sender stays; only the main thread may mark a signal as sent by kill()
        raw::syscall(SYS_rt_sigqueueinfo, ::getpid(), number, &again);
    } else {
        hand_on(number, info, context);
    }
}

bool is_ours(const struct sigaction& action) noexcept {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus;
}

// Whether SIGBUS is still what was made of it here: the program may have gone to the kernel itself.
bool is_held() noexcept {
    struct sigaction now{};
    if (::sigaction(SIGBUS, nullptr, &now) != 0) return false;
    return is_ours(now) || (now.sa_handler == SIG_IGN && program().sa_handler == SIG_IGN);
}

// The kernel treats the handler as it would the program's: what it blocks, restarts and where it runs.
void install() noexcept {
    struct sigaction ours = program();
    if (ours.sa_handler != SIG_IGN) {
        const bool is_default = ours.sa_handler == SIG_DFL;
        ours.sa_flags =
            (is_default ? SA_ONSTACK | SA_RESTART : ours.sa_flags & ~static_cast<int>(SA_RESETHAND)) | SA_SIGINFO;
        ours.sa_sigaction = on_bus;
    }
    ::sigaction(SIGBUS, &ours, nullptr);
}

void mask_bus(int how) noexcept {
    sigset_t bus;
    ::sigemptyset(&bus);
    ::sigaddset(&bus, SIGBUS);
    ::pthread_sigmask(how, &bus, nullptr);
}

}  // namespace

void add(void* at, std::size_t bytes) noexcept { g_ranges.add(at, bytes); }

void remove(const void* at) noexcept { g_ranges.remove(at); }

void begin(void (*on_truncation)(), OnDeath on_death) noexcept {
    const SignalChange changing(g_changing);
    if (g_is_begun.load(std::memory_order_relaxed)) return;
    g_is_cut.store(false, std::memory_order_relaxed);
    g_on_truncation.store(on_truncation, std::memory_order_release);
    g_on_death.store(on_death, std::memory_order_release);
    struct sigaction before{};
    if (::sigaction(SIGBUS, nullptr, &before) != 0) return;
    set_program(before);
    install();
    g_is_begun.store(true, std::memory_order_release);
}

void end() noexcept {
    if (!g_is_begun.load(std::memory_order_acquire)) return;
    const SignalChange changing(g_changing);
    if (is_held()) ::sigaction(SIGBUS, &program(), nullptr);
    g_is_begun.store(false, std::memory_order_release);
    g_on_truncation.store(nullptr, std::memory_order_release);
    g_on_death.store(nullptr, std::memory_order_release);
}

void end_in_child() noexcept {
    g_changing.clear(std::memory_order_relaxed);
    end();
}

bool is_truncated() noexcept { return g_is_cut.load(std::memory_order_acquire); }

void cut() noexcept {
    g_ranges.each([](const OwnRanges::Range& range) {
        constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        raw::mmap(reinterpret_cast<void*>(range.start), range.end - range.start, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    });
    if (g_is_cut.exchange(true, std::memory_order_acq_rel)) return;
    void (*on_truncation)() = g_on_truncation.load(std::memory_order_acquire);
    if (on_truncation != nullptr) on_truncation();
}

bool has_page(const void* at) noexcept {
    const ErrnoKept kept;
    auto* page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(at) & ~std::uintptr_t{4095});
    const bool is_gone = raw::madvise(page, 4096, raw::kPopulateRead) != 0 && errno == EFAULT;
    return !is_gone;
}

bool program_action(const struct sigaction* action, struct sigaction* old, int* result) noexcept {
    if (!g_is_begun.load(std::memory_order_acquire)) return false;
    const struct sigaction wanted =
        action != nullptr ? *action : program();  // here a bad pointer faults as in the C library
    const SignalChange changing(g_changing);
    if (!g_is_begun.load(std::memory_order_relaxed) || !is_held()) return false;
    const struct sigaction before = program();
    if (action != nullptr) {
        set_program(wanted);
        install();
    }
    if (old != nullptr) *old = before;
    *result = 0;
    return true;
}

bool program_signal(void (*handler)(int), void (**old)(int)) noexcept {
    struct sigaction wanted{}, before{};
    wanted.sa_handler = handler;
    wanted.sa_flags = SA_RESTART;
    ::sigaddset(&wanted.sa_mask, SIGBUS);
    int result = 0;
    if (handler == SIG_ERR || !program_action(&wanted, &before, &result)) return false;
    *old = before.sa_handler;
    return true;
}

OwnFaults::OwnFaults() noexcept {
    t_own_faults_only = true;
    mask_bus(SIG_UNBLOCK);
}

OwnFaults::~OwnFaults() { mask_bus(SIG_BLOCK); }

}  // namespace hiwater::capture::file_guard
