#include "interpose/allocators.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "interpose/allocator_hooks.h"
#include "interpose/modules.h"

namespace hiwater::interpose {

namespace {

// Once found, an allocator keeps its number for the life of the process: pointers to its hooks may be kept for ever.
struct Allocator {
    std::uintptr_t base = 0;
    std::string file;
    const char* product = nullptr;  // null: not known by name
    bool is_library = false;        // an allocator and nothing else
    std::vector<Hook> hooks;
};

struct Found {
    std::vector<Allocator> allocators;
    bool is_first_module = true;
    std::uintptr_t c_library = 0;
};

std::vector<Allocator>& known() {
    static auto* const allocators = new std::vector<Allocator>();  // hooks outlive static destruction
    return *allocators;
}

const char* product_of(const Module& module) noexcept {
    constexpr const char* kProducts[][2] = {
        {"mallctl", "jemalloc"},
        {"je_mallctl", "jemalloc"},
        {"mi_version", "mimalloc"},
        {"tc_version", "tcmalloc"},
        {"tc_malloc", "tcmalloc"},
        {"mi_malloc", "mimalloc"},
        {"__asan_init", "AddressSanitizer"},
    };
    for (const auto& [function, product] : kProducts)
        if (function_in(module, function) != nullptr) return product;
    return nullptr;
}

bool has_malloc(const Module& module) noexcept {
    return function_in(module, "malloc") != nullptr && function_in(module, "free") != nullptr;
}

bool has_entries(const Module& module) noexcept {
    for (const char* entry : {"mallocx", "je_malloc", "mi_malloc", "tc_malloc"})
        if (function_in(module, entry) != nullptr) return true;
    return has_malloc(module);
}

bool is_known(const dl_phdr_info* info) noexcept {
    for (const Allocator& allocator : known())
        if (allocator.base == info->dlpi_addr && allocator.file == info->dlpi_name) return true;
    return false;
}

int add_if_allocator(dl_phdr_info* info, std::size_t, void* data) {
    Found& found = *static_cast<Found*>(data);
    const bool is_program = found.is_first_module;
    found.is_first_module = false;
    const std::uintptr_t base = info->dlpi_addr;
    Module module;
    if (base == own_base() || base == found.c_library || is_linker(info) || is_known(info) ||
        !read_module(info, &module) || !has_entries(module))
        return 0;
    if (known().size() + found.allocators.size() >= kMostAllocators) return 1;
    Allocator& allocator = found.allocators.emplace_back();
    allocator.base = base;
    allocator.file = info->dlpi_name;
    allocator.product = product_of(module);
    allocator.is_library = !is_program && has_malloc(module) && function_in(module, "PyObject_Malloc") == nullptr;
    add_allocator_hooks(static_cast<int>(known().size() + found.allocators.size()) - 1, module, &allocator.hooks);
    return 0;
}

std::string_view file_name(std::string_view path) noexcept {
    const std::size_t slash = path.rfind('/');
    return slash == path.npos ? path : path.substr(slash + 1);
}

bool is_preloaded(std::string_view file) noexcept {
    const char* list = ::getenv("LD_PRELOAD");
    return list != nullptr && !file.empty() && std::string_view(list).find(file_name(file)) != std::string_view::npos;
}

std::string in_words(const Allocator& allocator) {
    const std::string file(file_name(allocator.file));
    if (allocator.file.empty())
        return (allocator.product == nullptr ? std::string("an allocator") : allocator.product) +
               " (part of the program)";
    const char* how = is_preloaded(allocator.file) ? "preloaded" : "";
    if (allocator.product == nullptr) return *how == '\0' ? file : file + " (" + how + ")";
    return std::string(allocator.product) + " (" + (*how == '\0' ? file : std::string(how) + ", " + file) + ")";
}

bool is_of_malloc(const Allocator& allocator) noexcept {
    for (const Hook& hook : allocator.hooks)
        if (hook.is_global && ::strcmp(hook.name, "malloc") == 0) return true;
    return false;
}

// Adds those among the modules loaded since the last time.
void find_new_allocators() {
    static LoaderCounts last;
    const LoaderCounts now = loader_counts();
    if (now == last) return;
    Found found;
    found.c_library = base_of(::dlsym(RTLD_DEFAULT, "__libc_start_main"));
    ::dl_iterate_phdr(add_if_allocator, &found);
    for (Allocator& allocator : found.allocators) {
        for (Hook& hook : allocator.hooks) hook.is_global = *hook.real == global_function(hook.name);
        known().push_back(std::move(allocator));
    }
    last = now;
}

}  // namespace

void find_allocators(std::vector<Hook>* hooks) {
    find_new_allocators();
    for (const Allocator& allocator : known())
        hooks->insert(hooks->end(), allocator.hooks.begin(), allocator.hooks.end());
}

bool is_allocator_library(std::uintptr_t base) noexcept {
    for (const Allocator& allocator : known())
        if (allocator.base == base) return allocator.is_library;
    return false;
}

bool is_malloc_replaced() noexcept { return std::any_of(known().begin(), known().end(), is_of_malloc); }

std::string allocators_in_words() {
    std::string first, others;
    for (const Allocator& allocator : known()) {
        if (is_of_malloc(allocator)) {
            first = in_words(allocator);
        } else {
            others += (others.empty() ? "" : ", ") + in_words(allocator);
        }
    }
    if (others.empty()) return first;
    return (first.empty() ? "the C library's" : first) + "; beside it " + others;
}

}  // namespace hiwater::interpose
