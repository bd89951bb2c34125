// What the program asks about signals that are answered here (capture/file_guard.h, session/fatal_signals.h), and
// abort().
#include <signal.h>
#include <stdlib.h>

#include "base/errno_kept.h"
#include "capture/file_guard.h"
#include "interpose/exit_callback.h"
#include "interpose/hooks.h"
#include "session/fatal_signals.h"
#include "session/recorder.h"

namespace hiwater::interpose {

namespace {

int hook_sigaction(int number, const struct sigaction* action, struct sigaction* old) {
    int result = 0;
    if (number == SIGBUS && capture::file_guard::program_action(action, old, &result)) return result;
    return fatal_signals::program_action(number, action, old);
}

template <int kEntry>  // signal, and its kin that reset a handler once it was called
sighandler_t hook_signal(int number, sighandler_t handler) {
    sighandler_t old = SIG_ERR;
    if (kEntry == 0 && number == SIGBUS && capture::file_guard::program_signal(handler, &old)) return old;
    return fatal_signals::program_signal(number, handler, real<hook_signal<kEntry>>);
}

int hook_sigaltstack(const stack_t* stack, stack_t* old) { return fatal_signals::program_stack(stack, old); }

// The interpreter calls abort() for a fatal error, and for os.abort().
[[noreturn]] void hook_abort() {
    const void* const caller = __builtin_return_address(0);
    if (recording() && in_interpreter(caller) && !is_in_os_abort(caller)) fatal_signals::expect_fatal_error();
    real<hook_abort>();
    __builtin_unreachable();
}

}  // namespace

void add_signal_hooks(std::vector<Hook>* hooks) {
    constexpr auto of = Hook::Of::process;
    hooks->insert(hooks->end(), {
                                    hook_of<hook_sigaction>("sigaction", of),
                                    hook_of<hook_signal<0>>("signal", of),
                                    hook_of<hook_signal<1>>("sysv_signal", of),
                                    hook_of<hook_signal<2>>("__sysv_signal", of),
                                    hook_of<hook_sigaltstack>("sigaltstack", of),
                                    hook_of<hook_abort>("abort", of),
                                });
}

}  // namespace hiwater::interpose
