#include "interpose/hooks.h"

#include <setjmp.h>

#include <bit>
#include <cstdint>

#include "session/recorder.h"

namespace hiwater::interpose {

namespace {

// Where the stack will stand. glibc keeps it as the seventh word, exclusive-ored with a word of the thread's control
// block and rotated.
std::uintptr_t stack_at(const void* place) noexcept {
#if defined(__x86_64__)
    constexpr int kStackPointer = 6, kTurn = 17;
    std::uintptr_t guard = 0;
    asm("movq %%fs:0x30, %0" : "=r"(guard));
    return std::rotr(static_cast<const std::uintptr_t*>(place)[kStackPointer], kTurn) ^ guard;
#else
    (void)place;
    return 0;
#endif
}

// Whether this C library stores it so: checked once, with a known stack pointer.
bool knows_places() noexcept {
    static const bool does = [] {
        constexpr std::uintptr_t kNear = 4096;
        jmp_buf here;
        std::uintptr_t now = 0;
        store_stack_pointer(&now);
        if (_setjmp(here) != 0) return false;
        return stack_at(here) - now + kNear < 2 * kNear;
    }();
    return does;
}

void before_jump(const void* place) noexcept {
    if ((tls.busy != 0 || tls.covered != 0 || Recorder::is_inside()) && knows_places())
        recorder().on_jump(stack_at(place));
}

template <int kEntry>  // the C library has several of one meaning
void hook_longjmp(const void* place, int value) {
    before_jump(place);
    real<hook_longjmp<kEntry>>(place, value);
}

}  // namespace

void add_jump_hooks(std::vector<Hook>* hooks) {
    hooks->push_back(hook_of<hook_longjmp<0>>("longjmp", Hook::Of::process));
    hooks->push_back(hook_of<hook_longjmp<1>>("_longjmp", Hook::Of::process));
    hooks->push_back(hook_of<hook_longjmp<2>>("siglongjmp", Hook::Of::process));
    hooks->push_back(hook_of<hook_longjmp<3>>("__longjmp_chk", Hook::Of::process));
}

}  // namespace hiwater::interpose
