#include "interpose/hooks.h"

#include "base/jump_places.h"
#include "session/recorder.h"

namespace hiwater::interpose {

namespace {

constinit JumpPlaces g_places;

void before_jump(const void* place) noexcept {
    if ((tls.busy != 0 || tls.covered != 0 || Recorder::is_inside()) && g_places.are_known())
        recorder().on_jump(g_places.stack_at(place));
}

template <int kEntry>  // the C library has several of one meaning
void hook_longjmp(const void* place, int value) {
    before_jump(place);
    real<hook_longjmp<kEntry>>(place, value);
}

}  // namespace

void add_jump_hooks(std::vector<Hook>* hooks) {
    g_places.learn();
    hooks->push_back(hook_of<hook_longjmp<0>>("longjmp", Hook::Of::process));
    hooks->push_back(hook_of<hook_longjmp<1>>("_longjmp", Hook::Of::process));
    hooks->push_back(hook_of<hook_longjmp<2>>("siglongjmp", Hook::Of::process));
    hooks->push_back(hook_of<hook_longjmp<3>>("__longjmp_chk", Hook::Of::process));
}

}  // namespace hiwater::interpose
