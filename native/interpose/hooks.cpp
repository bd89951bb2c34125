// The hooks of malloc and its family. Each hook has three parts: remove what the call will free from the tables, make
// the call, record the block that it returned.
#include "interpose/hooks.h"

#include <signal.h>

#include <cstdint>
#include <vector>

#include "interpose/allocators.h"
#include "interpose/block_hooks.h"
#include "interpose/exec_hooks.h"
#include "interpose/kept_pointers.h"
#include "interpose/libraries.h"
#include "interpose/process_hooks.h"
#include "interpose/python_hooks.h"
#include "interpose/slots.h"

namespace hiwater::interpose {

namespace {

using capture::Kind;

void* hook_malloc(std::size_t bytes);
void* hook_calloc(std::size_t count, std::size_t each);
void hook_free(void* block);

// Memory of native code alone may be a reason to begin sampling.
[[gnu::always_inline]] inline void expect_answer(std::size_t bytes) noexcept {
    constexpr std::size_t kMuch = 64 * 1024;
    if (bytes >= kMuch && python_is_asked()) [[unlikely]]
        Recorder::hurry_python();
}

[[gnu::always_inline]] inline void* recorded(void* block, std::size_t bytes) noexcept {
    expect_answer(bytes);
    if (block != nullptr) [[likely]]
        return recorder().on_alloc<Kind::native>(block, bytes);
    if (bytes != 0) recorder().on_refused(bytes);
    return block;
}

// --- malloc and its family

// The two most frequent hooks are split in two functions, so that a call that needs no saved registers continues as a
// jump. One comparison with `every_block` distinguishes all three values of Wanted.
template <Wanted kWanted>
[[gnu::noinline]] void* malloc_for(std::size_t bytes) {
    void* block = real<hook_malloc>(bytes);
    if (kWanted == Wanted::slow_path || !wants(kWanted) || block == nullptr) [[unlikely]]
        return recording() ? recorded(block, bytes) : block;
    if (kWanted == Wanted::every_block && bytes < LiveTable::kLargeBytes) [[likely]]
        return Recorder::record<Kind::native, true>(block, bytes);
    expect_answer(bytes);
    if constexpr (kWanted == Wanted::every_block) return Recorder::record<Kind::native>(block, bytes);
    return recorder().record_if_sampled<Kind::native>(block, bytes);
}

void* hook_malloc(std::size_t bytes) {
    if (tls.covered != 0) return real<hook_malloc>(bytes);
    if (wants(Wanted::every_block)) [[likely]]
        return malloc_for<Wanted::every_block>(bytes);
    return wanted() > Wanted::every_block ? malloc_for<Wanted::few_samples>(bytes)
                                          : malloc_for<Wanted::slow_path>(bytes);
}

[[gnu::noinline]] void* calloc_recorded(std::size_t count, std::size_t each) {
    void* block = real<hook_calloc>(count, each);
    return recording() ? recorded(block, product(count, each)) : block;
}

void* hook_calloc(std::size_t count, std::size_t each) {
    return tls.covered != 0 ? real<hook_calloc>(count, each) : calloc_recorded(count, each);
}

void* hook_realloc(void* old, std::size_t bytes) {
    if (!watching()) return real<hook_realloc>(old, bytes);
    const Block taken = recorder().take(old);
    void* block = real<hook_realloc>(old, bytes);
    if (block != nullptr) [[likely]]
        return recorded(block, bytes);
    // realloc(p, 0) frees and gives null; any other null left the old block as it was.
    if (bytes != 0 && old != nullptr) recorder().put_back(old, taken);
    if (bytes != 0) recorder().on_refused(bytes);
    return nullptr;
}

[[gnu::noinline]] void free_any_mode(void* block) {
    if (block != nullptr) recorder().on_free(block);
    real<hook_free>(block);
}

[[gnu::noinline]] void free_other(LiveTable::Region* region, void* block) {
    if (block != nullptr) recorder().forget_other<false>(region, block);
    real<hook_free>(block);
}

[[gnu::always_inline]] inline void free_exact(void* block) {
    LiveTable::Region* const region = recorder().region_of(block);
    if (region == nullptr || !recorder().forget_small(region, block)) return free_other(region, block);
    real<hook_free>(block);
}

void hook_free(void* block) {
    if (wants(Wanted::every_block)) [[likely]]
        return free_exact(block);
    const Wanted now = wanted();
    if (now > Wanted::every_block ? recorder().may_be_sampled(block) : recording()) return free_any_mode(block);
    real<hook_free>(block);
}

template <Does kDoes, int kEntry>
Word hook_any(Word a, Word b, Word c, Word d) {
    return call_recorded<kDoes>(real<hook_any<kDoes, kEntry>>, nullptr, a, b, c, d);
}

// Of the C library.
std::vector<Hook> make_hooks() {
    using Of = Hook::Of;
    std::vector<Hook> hooks{
        hook_of<hook_malloc>("malloc", Of::heap),
        hook_of<hook_calloc>("calloc", Of::heap),
        hook_of<hook_realloc>("realloc", Of::heap),
        hook_of<hook_any<Does::resize_product, 0>>("reallocarray", Of::heap),
        hook_of<hook_free>("free", Of::heap),
        hook_of<hook_any<Does::release, 0>>("free_sized", Of::heap),
        hook_of<hook_any<Does::release, 1>>("free_aligned_sized", Of::heap),
        hook_of<hook_any<Does::fill_pointer, 0>>("posix_memalign", Of::heap),
        hook_of<hook_any<Does::allocate_second, 0>>("aligned_alloc", Of::heap),
        hook_of<hook_any<Does::allocate_second, 1>>("memalign", Of::heap),
        hook_of<hook_any<Does::allocate_first, 0>>("valloc", Of::heap),
        hook_of<hook_any<Does::allocate_first, 1>>("pvalloc", Of::heap),
    };
    add_mapping_hooks(&hooks);
    add_shared_memory_hooks(&hooks);
    add_process_hooks(&hooks);
    add_exec_hooks(&hooks);
    add_jump_hooks(&hooks);
    add_signal_hooks(&hooks);
    add_unloading_hooks(&hooks);
    add_python_hooks(&hooks);
    return hooks;
}

// Never destroyed: a recording may outlive static destruction.
std::vector<Hook>& library_hooks() {
    static auto* const hooks = new std::vector<Hook>(make_hooks());
    return *hooks;
}

// The same and those of all other allocators.
std::vector<Hook>& all_hooks() {
    static auto* const hooks = new std::vector<Hook>();
    return *hooks;
}

bool g_installed = false;

}  // namespace

// Both functions allocate. A program that is not position-independent and uses the address of `malloc` defines the
// symbol: then this module's own calls go through the program's slots, too. What is allocated before a slot is
// exchanged may be freed after it.
std::string install_hooks() {
    if (g_installed) return {};
    BusyGuard busy;
    forget_libraries();
    std::vector<Hook>& library = library_hooks();
    find_real_functions(library.data(), library.size());
    prepare_process_hooks();
    std::vector<Hook>& hooks = all_hooks();
    hooks = library;
    find_allocators(&hooks);
    add_foreign_call_hooks(&hooks);
    g_installed = true;
    std::string missed = install(hooks.data(), hooks.size());
    exchange_foreign_calls(hooks);
    exchange_in_data(hooks, true);
    return missed;
}

bool sees_malloc() noexcept { return true; }

void remove_hooks(bool process_ends) noexcept {
    if (!g_installed) return;
    BusyGuard busy;
    if (!process_ends) exchange_in_data(all_hooks(), false);
    restore(all_hooks().data(), all_hooks().size());
    g_installed = false;
}

}  // namespace hiwater::interpose
