// Another library may come to where one was unloaded: what was known of the code there is void.
#include <dlfcn.h>

#include "interpose/hooks.h"
#include "unwind/unwinder.h"

namespace hiwater::interpose {

namespace {

// Once before, and once after: in between, another thread may meet the library for the last time.
int hook_dlclose(void* library) {
    unwind::note_unloading();
    const int result = real<hook_dlclose>(library);
    unwind::note_unloading();
    return result;
}

}  // namespace

void add_unloading_hooks(std::vector<Hook>* hooks) {
    hooks->push_back(hook_of<hook_dlclose>("dlclose", Hook::Of::process));
}

}  // namespace hiwater::interpose
