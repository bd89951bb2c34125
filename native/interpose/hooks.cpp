// The hooks of malloc and its family. Each hook has three parts: remove what the call will free from the tables, make the call, record the
// block that it returned.
#include "interpose/hooks.h"

#include <errno.h>
#include <signal.h>

#include <cstdint>
#include <vector>

#include "heap/fast_path.h"
#include "interpose/allocators.h"
#include "interpose/jump_hooks.h"
#include "interpose/kept_pointers.h"
#include "interpose/libraries.h"
#include "interpose/mapping_hooks.h"
#include "interpose/process_hooks.h"
#include "interpose/real.h"
#include "interpose/shared_memory_hooks.h"
#include "interpose/slots.h"

namespace hiwater::interpose {

Real real;

namespace {

using capture::Kind;

Recorder& recorder() { return Recorder::instance(); }

[[gnu::always_inline]] inline void* recorded(void* block, std::size_t bytes) noexcept {
    if (block != nullptr) [[likely]]
        return recorder().on_alloc<Kind::native>(block, bytes);
    if (bytes != 0) recorder().on_refused(bytes);
    return block;
}

// --- malloc and its family -----------------------------------------------------------------------------------------------------

// The two most frequent hooks are split in two functions, so that a call that needs no saved registers continues as a jump.
// One comparison with `every_block` distinguishes all three values of Wanted.
template <Wanted kWanted>
[[gnu::noinline]] void* malloc_for(std::size_t bytes) {
    void* block = real.malloc(bytes);
    if (kWanted == Wanted::slow_path || !wants(kWanted) || block == nullptr) [[unlikely]]
        return recording() ? recorded(block, bytes) : block;
    if constexpr (kWanted == Wanted::every_block) return recorder().record<Kind::native>(block, bytes);
    return recorder().record_if_sampled<Kind::native>(block, bytes);
}

void* hook_malloc(std::size_t bytes) {
    if (tls.covered != 0) return real.malloc(bytes);
    const Wanted now = wanted();
    if (now == Wanted::every_block) return malloc_for<Wanted::every_block>(bytes);
    return now > Wanted::every_block ? malloc_for<Wanted::few_samples>(bytes) : malloc_for<Wanted::slow_path>(bytes);
}

[[gnu::noinline]] void* calloc_recorded(std::size_t count, std::size_t each) {
    void* block = real.calloc(count, each);
    return recording() ? recorded(block, product(count, each)) : block;
}

void* hook_calloc(std::size_t count, std::size_t each) {
    return tls.covered != 0 ? real.calloc(count, each) : calloc_recorded(count, each);
}

void* hook_realloc(void* old, std::size_t bytes) {
    if (!watching()) return real.realloc(old, bytes);
    const Block taken = recorder().take(old);
    void* block = real.realloc(old, bytes);
    if (block != nullptr) return recorded(block, bytes);
    // realloc(p, 0) frees and gives null; any other null left the old block as it was.
    if (bytes != 0 && old != nullptr) recorder().put_back(old, taken);
    if (bytes != 0) recorder().on_refused(bytes);
    return nullptr;
}

void* hook_reallocarray(void* old, std::size_t count, std::size_t each) {
    if (!watching()) return real.reallocarray(old, count, each);
    const Block taken = recorder().take(old);
    void* block;
    {
        Covered covered;  // the C library's own calls realloc through its slot
        block = real.reallocarray(old, count, each);
    }
    const std::size_t bytes = product(count, each);
    if (block != nullptr) return recorded(block, bytes);
    if (bytes != 0 && old != nullptr) recorder().put_back(old, taken);
    if (bytes != 0) recorder().on_refused(bytes);
    return nullptr;
}

[[gnu::noinline]] void free_any_mode(void* block) {
    if (block != nullptr) recorder().on_free(block);
    real.free(block);
}

[[gnu::noinline]] void free_exact(void* block) {
    recorder().forget(block);
    real.free(block);
}

void hook_free(void* block) {
    const Wanted now = wanted();
    if (now == Wanted::every_block) return free_exact(block);
    if (now > Wanted::every_block ? recorder().may_be_sampled(block) : recording()) return free_any_mode(block);
    real.free(block);
}

void hook_free_sized(void* block, std::size_t bytes) {
    if (recording() && block != nullptr) recorder().on_free(block);
    real.free_sized(block, bytes);
}

void hook_free_aligned_sized(void* block, std::size_t alignment, std::size_t bytes) {
    if (recording() && block != nullptr) recorder().on_free(block);
    real.free_aligned_sized(block, alignment, bytes);
}

int hook_posix_memalign(void** out, std::size_t alignment, std::size_t bytes) {
    const int error = real.posix_memalign(out, alignment, bytes);
    if (error == 0 && watching()) recorded(*out, bytes);
    if (error == ENOMEM && watching()) recorder().on_refused(bytes);
    return error;
}

void* hook_aligned_alloc(std::size_t alignment, std::size_t bytes) {
    void* block = real.aligned_alloc(alignment, bytes);
    return watching() ? recorded(block, bytes) : block;
}

void* hook_memalign(std::size_t alignment, std::size_t bytes) {
    void* block = real.memalign(alignment, bytes);
    return watching() ? recorded(block, bytes) : block;
}

void* hook_valloc(std::size_t bytes) {
    void* block = real.valloc(bytes);
    return watching() ? recorded(block, bytes) : block;
}

void* hook_pvalloc(std::size_t bytes) {
    void* block = real.pvalloc(bytes);
    return watching() ? recorded(block, bytes) : block;
}

// --- signals ---------------------------------------------------------------------------------------------------------------------------

// SIGBUS is answered by us while a capture is mapped, and the program does not see it: capture/file_guard.h.
int hook_sigaction(int number, const struct sigaction* action, struct sigaction* old) {
    int result = 0;
    if (number == SIGBUS && capture::file_guard::program_action(action, old, &result)) return result;
    return real.sigaction(number, action, old);
}

sighandler_t hook_signal(int number, sighandler_t handler) {
    sighandler_t old = SIG_ERR;
    if (number == SIGBUS && capture::file_guard::program_signal(handler, &old)) return old;
    return real.signal(number, handler);
}

#define HIWATER_HOOK(kind, name) \
    Hook { #name, reinterpret_cast<void*>(&hook_##name), reinterpret_cast<void**>(&real.name), Hook::Of::kind, true }

Hook g_hooks[] = {
    HIWATER_HOOK(heap, malloc),
    HIWATER_HOOK(heap, calloc),
    HIWATER_HOOK(heap, realloc),
    HIWATER_HOOK(heap, reallocarray),
    HIWATER_HOOK(heap, free),
    HIWATER_HOOK(heap, free_sized),
    HIWATER_HOOK(heap, free_aligned_sized),
    HIWATER_HOOK(heap, posix_memalign),
    HIWATER_HOOK(heap, aligned_alloc),
    HIWATER_HOOK(heap, memalign),
    HIWATER_HOOK(heap, valloc),
    HIWATER_HOOK(heap, pvalloc),
    HIWATER_HOOK(mappings, mmap),
    HIWATER_HOOK(mappings, mmap64),
    HIWATER_HOOK(mappings, munmap),
    HIWATER_HOOK(mappings, mremap),
    HIWATER_HOOK(mappings, mprotect),
    HIWATER_HOOK(mappings, open),
    HIWATER_HOOK(mappings, open64),
    HIWATER_HOOK(mappings, openat),
    HIWATER_HOOK(mappings, openat64),
    HIWATER_HOOK(mappings, memfd_create),
    HIWATER_HOOK(mappings, shm_open),
    HIWATER_HOOK(mappings, ftruncate),
    HIWATER_HOOK(mappings, ftruncate64),
    HIWATER_HOOK(mappings, fallocate),
    HIWATER_HOOK(mappings, fallocate64),
    HIWATER_HOOK(mappings, posix_fallocate),
    HIWATER_HOOK(mappings, posix_fallocate64),
    HIWATER_HOOK(process, shmat),
    HIWATER_HOOK(process, shmdt),
    HIWATER_HOOK(mappings, brk),
    HIWATER_HOOK(mappings, sbrk),
    HIWATER_HOOK(process, pthread_create),
    HIWATER_HOOK(process, prctl),
    HIWATER_HOOK(process, syscall),
    HIWATER_HOOK(process, pthread_setname_np),
    HIWATER_HOOK(process, sigaction),
    HIWATER_HOOK(process, signal),
    HIWATER_HOOK(process, longjmp),
    HIWATER_HOOK(process, _longjmp),
    HIWATER_HOOK(process, siglongjmp),
    HIWATER_HOOK(process, __longjmp_chk),
    HIWATER_HOOK(process, fork),
    HIWATER_HOOK(process, _Fork),
    HIWATER_HOOK(process, forkpty),
    Hook{"_exit", reinterpret_cast<void*>(&hook_exit_now), reinterpret_cast<void**>(&real.exit_now), Hook::Of::process, true},
    Hook{"_Exit", reinterpret_cast<void*>(&hook_exit_now_c), reinterpret_cast<void**>(&real.exit_now_c), Hook::Of::process, true},
    HIWATER_HOOK(process, execv),
    HIWATER_HOOK(process, execve),
    HIWATER_HOOK(process, execvp),
    HIWATER_HOOK(process, execvpe),
    HIWATER_HOOK(process, fexecve),
};
constexpr std::size_t kHooks = sizeof g_hooks / sizeof g_hooks[0];
bool g_installed = false;

// The C library's and those of all other allocators.
std::vector<Hook>& all_hooks() {
    static auto* const hooks = new std::vector<Hook>();  // a recording may outlive static destruction
    return *hooks;
}

}  // namespace

std::string install_hooks() {
    if (g_installed) return {};
    forget_libraries();
    find_real_functions(g_hooks, kHooks);
    prepare_process_hooks();
    std::vector<Hook>& hooks = all_hooks();
    hooks.assign(g_hooks, g_hooks + kHooks);
    find_allocators(&hooks);
    add_foreign_call_hooks(&hooks);
    g_installed = true;
    std::string missed = install(hooks.data(), hooks.size());
    exchange_foreign_calls(hooks);
    exchange_in_data(hooks, true);
    return missed;
}

void remove_hooks() noexcept {
    if (!g_installed) return;
    exchange_in_data(all_hooks(), false);
    restore(all_hooks().data(), all_hooks().size());
    g_installed = false;
}

}  // namespace hiwater::interpose
