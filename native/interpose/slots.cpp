#include "interpose/slots.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <new>
#include <vector>

#include "base/pages.h"
#include "base/raw_calls.h"
#include "interpose/allocators.h"
#include "interpose/modules.h"

namespace hiwater::interpose {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kJumpSlot = R_X86_64_JUMP_SLOT, kGlobDat = R_X86_64_GLOB_DAT, kAbsolute = R_X86_64_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobDat = R_AARCH64_GLOB_DAT, kAbsolute = R_AARCH64_ABS64;
#else
#error "relocation types of this processor are not known here"
#endif

// A quick no to the many symbols that are not hooked. Several hooks may have one name, each for a function of its own.
class NameFilter {
public:
    NameFilter(const Hook* hooks, std::size_t count) : hooks_(hooks), count_(count) {
        for (std::size_t i = 0; i < count; ++i) bits_.set(place(hooks[i].name));
    }
    bool may_have(const char* name) const noexcept { return bits_.test(place(name)); }
    template <typename Visit>  // visit(hook)
    void each(const char* name, Visit visit) const noexcept {
        each([&](const Hook& hook) {
            if (::strcmp(hook.name, name) == 0) visit(hook);
        });
    }

    template <typename Visit>  // visit(hook)
    void each(Visit visit) const noexcept {
        for (std::size_t i = 0; i < count_; ++i)
            if (hooks_[i].real != nullptr && *hooks_[i].real != nullptr) visit(hooks_[i]);
    }

private:
    static constexpr std::size_t kPlaces = 1024;
    static std::size_t place(const char* name) noexcept {  // by its first three letters
        std::size_t sum = 0;
        for (int i = 0; i < 3 && name[i] != '\0'; ++i) sum = sum * 37 + static_cast<unsigned char>(name[i]);
        return sum % kPlaces;
    }
    const Hook* hooks_;
    std::size_t count_;
    std::bitset<kPlaces> bits_;
};

template <typename Visit>  // visit(slot, symbol)
void each_slot(const Module& module, Visit visit) noexcept {
    for (int t = 0; t < 2; ++t) {
        const ElfW(Rela)* rela = module.tables[t];
        if (rela == nullptr) continue;
        const std::size_t count = module.table_bytes[t] / sizeof(*rela);
        for (std::size_t i = 0; i < count; ++i) {
            const std::uint32_t type = ELF64_R_TYPE(rela[i].r_info);
            if (type != kJumpSlot && type != kGlobDat && !(type == kAbsolute && rela[i].r_addend == 0)) continue;
            const std::uint32_t symbol = ELF64_R_SYM(rela[i].r_info);
            if (symbol == 0) continue;
            visit(reinterpret_cast<void**>(module.base + rela[i].r_offset), symbol);
        }
    }
}

// One word to change: a call slot, or the value of a symbol (an offset from its module's base; the loader adds the base
// back).
struct Patch {
    void** where;
    void *ours, *real;
    int protection;  // of its page
    bool is_symbol;
};

// Every word to change in the modules loaded at one moment. Finding them costs a walk over all relocations with
// symbols, so the list is kept and used again while the loader's counters stand still.
struct Plan {
    const NameFilter* filter = nullptr;
    std::vector<Patch> patches;
    LoaderCounts made_at;
    bool put_in = false;
    int error = 0;
};

// Whether a slot that holds an address in its own module waits to be bound: it holds the module's call stub, not its
// own function.
bool is_unbound(const Module& module, const void* value, const char* name) noexcept {
    return module.holds(reinterpret_cast<std::uintptr_t>(value)) && value != function_in(module, name);
}

// The hook for a slot: the one of the function that the slot is bound to. Where it is bound to nothing that is known,
// it is the C library's, in whatever manner another tool got in between; another allocator's only where the slot is
// still to be bound to it.
const Hook* hook_for(const Module& module, void* const* slot, const char* name, const NameFilter& filter) noexcept {
    const void* const value = *slot;
    const Hook *bound = nullptr, *global = nullptr;
    filter.each(name, [&](const Hook& hook) {
        if (value == *hook.real || value == hook.ours) bound = &hook;
        if (hook.is_global) global = &hook;
    });
    if (bound != nullptr || global == nullptr || global->of != Hook::Of::allocator)
        return bound != nullptr ? bound : global;
    return is_unbound(module, value, name) ? global : nullptr;
}

void plan_slots(const Module& module, Plan& plan) {
    const bool is_allocator = is_allocator_library(module.base);
    // By symbol. CPython's library has 15,000 slots for 2,000 symbols, and names lie in other pages.
    std::vector<bool> ruled_out;
    each_slot(module, [&](void** slot, std::uint32_t symbol) {
        if (symbol >= ruled_out.size()) ruled_out.resize(std::size_t{2} * symbol);
        if (ruled_out[symbol]) return;
        const char* const name = module.strings + module.symbols[symbol].st_name;
        ruled_out[symbol] = !plan.filter->may_have(name);
        if (ruled_out[symbol]) return;
        const Hook* hook = hook_for(module, slot, name, *plan.filter);
        if (hook == nullptr || (is_allocator && hook->of == Hook::Of::mappings)) return;
        plan.patches.push_back(
            {slot, hook->ours, *hook->real, module.protection_at(reinterpret_cast<std::uintptr_t>(slot)), false});
    });
}

// The dynamic symbols that define a hooked function. A name may have several versions; all with the same code move.
void plan_symbols(const Module& module, Plan& plan) {
    plan.filter->each([&](const Hook& hook) {
        if (!module.holds(reinterpret_cast<std::uintptr_t>(*hook.real))) return;
        const auto real = reinterpret_cast<std::uintptr_t>(*hook.real) - module.base;
        const auto ours = reinterpret_cast<std::uintptr_t>(hook.ours) - module.base;  // wraps
        each_function_named(module, hook.name, [&](ElfW(Sym) & symbol) {
            if (symbol.st_value != real && symbol.st_value != ours) return;
            auto** value = reinterpret_cast<void**>(&symbol.st_value);
            plan.patches.push_back({value, reinterpret_cast<void*>(ours), reinterpret_cast<void*>(real),
                                    module.protection_at(reinterpret_cast<std::uintptr_t>(value)), true});
        });
    });
}

int plan_module(dl_phdr_info* info, std::size_t, void* data) {
    Plan& plan = *static_cast<Plan*>(data);
    plan.made_at = {info->dlpi_adds, info->dlpi_subs};
    Module module;
    if (info->dlpi_addr == own_base() || !read_module(info, &module)) return 0;
    if (!is_linker(info)) plan_slots(module, plan);  // whose own slots are its business
    plan_symbols(module, plan);
    return 0;
}

std::uintptr_t page_of(const Patch& patch) noexcept {
    return reinterpret_cast<std::uintptr_t>(patch.where) & ~(kPage - 1);
}

void store(const Patch& patch, bool put_in) noexcept {
    void* const value = put_in ? patch.ours : patch.real;
    void* const expected = put_in ? patch.real : patch.ours;
    // A slot may still hold the loader's own stub; a symbol, or a slot to be restored, must hold one of the two values.
    if (*patch.where != expected && (patch.is_symbol || !put_in)) return;
    __atomic_store_n(patch.where, value, __ATOMIC_RELEASE);
}

// How many patches from `first` on lie in pages that follow each other, and are protected alike.
std::size_t together(const std::vector<Patch>& patches, std::size_t first) noexcept {
    std::size_t end = first + 1;
    while (end < patches.size() && page_of(patches[end]) - page_of(patches[end - 1]) <= kPage &&
           patches[end].protection == patches[first].protection)
        ++end;
    return end - first;
}

// Changes the words, pages that follow each other at a time where they are read-only, and leaves each page as protected
// as it was.
int carry_out(const std::vector<Patch>& patches, bool put_in) noexcept {
    int error = 0;
    for (std::size_t i = 0, end = 0; i < patches.size(); i = end) {
        end = i + together(patches, i);
        const int protection = patches[i].protection;
        const bool closed = (protection & PROT_WRITE) == 0;
        auto* at = reinterpret_cast<void*>(page_of(patches[i]));
        const std::size_t bytes = page_of(patches[end - 1]) + kPage - page_of(patches[i]);
        const bool open = !closed || raw::mprotect(at, bytes, protection | PROT_WRITE) == 0;
        if (!open) error = errno;
        for (std::size_t k = i; open && k < end; ++k) store(patches[k], put_in);
        if (closed && open) raw::mprotect(at, bytes, protection);
    }
    return error;
}

// Runs for the first module of the loader's iteration, which keeps every module where it is: a library that another
// thread unloads is gone before the search, or stays until the last store. An iteration may be begun within another.
int change_in_iteration(dl_phdr_info* info, std::size_t, void* data) {
    Plan& plan = *static_cast<Plan*>(data);
    if (plan.patches.empty() || LoaderCounts{info->dlpi_adds, info->dlpi_subs} != plan.made_at) {
        plan.patches.clear();
        try {
            ::dl_iterate_phdr(plan_module, &plan);
        } catch (const std::bad_alloc&) {  // no exception may pass through the loader
            plan.patches.clear();
            plan.error = ENOMEM;
            return 1;
        }
        std::sort(plan.patches.begin(), plan.patches.end(),
                  [](const Patch& a, const Patch& b) { return a.where < b.where; });
    }
    plan.error = carry_out(plan.patches, plan.put_in);
    return 1;
}

int change_all(const Hook* hooks, std::size_t count, bool put_in) {
    static Plan* const plan = new Plan();  // never destroyed: a recording may outlive static destruction
    const NameFilter filter(hooks, count);
    plan->filter = &filter;
    plan->put_in = put_in;
    plan->error = 0;
    ::dl_iterate_phdr(change_in_iteration, plan);
    plan->filter = nullptr;
    return plan->error;
}

}  // namespace

namespace {

// An executable at a fixed address (Debian's python) that takes a function's address makes its own call stub that
// address for everybody: an undefined symbol with a value. Through such a stub we would call ourselves.
bool is_call_stub(const char* name, void* function) noexcept {
    struct Search {
        const char* name;
        std::uintptr_t function;
        bool is_stub;
    } search{name, reinterpret_cast<std::uintptr_t>(function), false};
    ::dl_iterate_phdr(
        [](dl_phdr_info* program, std::size_t, void* of) {
            Search& asked = *static_cast<Search*>(of);
            Module module;
            asked.is_stub = program->dlpi_addr == 0 && read_module(program, &module) && module.gnu_hash != nullptr &&
                            module.holds(asked.function) && function_in(module, asked.name) == nullptr;
            return 1;  // the program is the first module
        },
        &search);
    return search.is_stub;
}

// The first library, in the loader's order, that has the function itself.
void* defined_in_a_library(const char* name) noexcept {
    void* program = ::dlopen(nullptr, RTLD_LAZY);
    link_map* module = nullptr;
    if (program == nullptr || ::dlinfo(program, RTLD_DI_LINKMAP, &module) != 0) return nullptr;
    void* found = nullptr;
    for (module = module->l_next; module != nullptr && found == nullptr; module = module->l_next) {
        void* library = ::dlopen(module->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (library == nullptr) continue;
        void* candidate = ::dlsym(library, name);  // it may be of a library that this one needs
        if (base_of(candidate) == module->l_addr) found = candidate;
        ::dlclose(library);
    }
    ::dlclose(program);
    return found;
}

CodeRange g_interpreter;

// Looked up once: hooks may be called while another thread holds the loader's locks.
void find_interpreter() noexcept {
    if (g_interpreter.end == 0) g_interpreter = code_around(::dlsym(RTLD_DEFAULT, "PyObject_Malloc"));
}

}  // namespace

CodeRange code_around(const void* address) noexcept {
    struct Search {
        const void* wanted;
        CodeRange found;
    } search{address, {}};
    ::dl_iterate_phdr(
        [](dl_phdr_info* module, std::size_t, void* of) {
            Search& asked = *static_cast<Search*>(of);
            for (std::size_t i = 0; i < module->dlpi_phnum; ++i) {
                const ElfW(Phdr) & p = module->dlpi_phdr[i];
                const std::uintptr_t start = module->dlpi_addr + p.p_vaddr;
                const CodeRange range{start, start + p.p_memsz};
                if (p.p_type != PT_LOAD || !range.contains(asked.wanted)) continue;
                asked.found = range;
                return 1;
            }
            return 0;
        },
        &search);
    return search.found;
}

const char* file_name_of(const dl_phdr_info* info) noexcept {
    const char* name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    const char* slash = ::strrchr(name, '/');
    return slash == nullptr ? name : slash + 1;
}

bool is_linker(const dl_phdr_info* info) noexcept {
    const char* const file = file_name_of(info);
    return ::strncmp(file, "ld-linux", 8) == 0 || ::strncmp(file, "ld-musl", 7) == 0 ||
           ::strncmp(file, "linux-vdso", 10) == 0;
}

void* global_function(const char* name) noexcept {
    void* found = ::dlsym(RTLD_DEFAULT, name);
    return found != nullptr && is_call_stub(name, found) ? defined_in_a_library(name) : found;
}

void find_real_functions(Hook* hooks, std::size_t count) noexcept {
    void* const c_library = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    for (std::size_t i = 0; i < count; ++i) {
        if (*hooks[i].real != nullptr) continue;
        void* const found = global_function(hooks[i].name);
        const bool is_heap = hooks[i].of == Hook::Of::heap && c_library != nullptr;
        *hooks[i].real = is_heap ? ::dlsym(c_library, hooks[i].name) : found;
        hooks[i].is_global = *hooks[i].real == found;
    }
    // The C library has one function for some two names (mmap, mmap64), and tools compare where they lead.
    for (std::size_t i = 0; i < count; ++i)
        for (std::size_t other = 0; other < i && *hooks[i].real != nullptr; ++other)
            if (*hooks[other].real == *hooks[i].real) hooks[i].ours = hooks[other].ours;
    if (c_library != nullptr) ::dlclose(c_library);
    find_interpreter();
}

std::string install(const Hook* hooks, std::size_t count) {
    const int error = change_all(hooks, count, true);
    if (error == 0) return {};
    return std::string("a read-only page of a loaded module cannot be changed (") + ::strerror(error) +
           "), so some calls and the modules loaded from now on are not recorded";
}

void restore(const Hook* hooks, std::size_t count) { change_all(hooks, count, false); }

bool in_interpreter(const void* address) noexcept { return g_interpreter.contains(address); }

}  // namespace hiwater::interpose
