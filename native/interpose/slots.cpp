#include "slots.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <vector>

#include "../base/pages.h"

namespace hiwater::interpose {

namespace {

#if defined(__x86_64__)
constexpr std::uint32_t kJumpSlot = R_X86_64_JUMP_SLOT, kGlobDat = R_X86_64_GLOB_DAT, kAbsolute = R_X86_64_64;
#elif defined(__aarch64__)
constexpr std::uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobDat = R_AARCH64_GLOB_DAT, kAbsolute = R_AARCH64_ABS64;
#else
#error "relocation types of this processor are not known here"
#endif

// What of a loaded module's dynamic section we read.
struct Module {
    ElfW(Addr) base = 0;
    const ElfW(Phdr) * headers = nullptr;
    std::size_t header_count = 0;
    const char* strings = nullptr;
    ElfW(Sym) * symbols = nullptr;
    const ElfW(Rela) * tables[2] = {};
    std::size_t table_bytes[2] = {};
    const std::uint32_t* gnu_hash = nullptr;

    // The protection the module's file asks for at an address; what RELRO made read-only after loading is told apart.
    int protection_at(std::uintptr_t address) const noexcept {
        int protection = PROT_READ;
        for (std::size_t i = 0; i < header_count; ++i) {
            const ElfW(Phdr) & p = headers[i];
            if (address < base + p.p_vaddr || address >= base + p.p_vaddr + p.p_memsz) continue;
            if (p.p_type == PT_GNU_RELRO) return PROT_READ;
            if (p.p_type == PT_LOAD)
                protection =
                    (p.p_flags & PF_R ? PROT_READ : 0) | (p.p_flags & PF_W ? PROT_WRITE : 0) | (p.p_flags & PF_X ? PROT_EXEC : 0);
        }
        // A RELRO segment listed after its PT_LOAD:
        for (std::size_t i = 0; i < header_count; ++i) {
            const ElfW(Phdr) & p = headers[i];
            if (p.p_type == PT_GNU_RELRO && address >= base + p.p_vaddr && address < base + p.p_vaddr + p.p_memsz) return PROT_READ;
        }
        return protection;
    }
};

template <typename T>
T at(ElfW(Addr) base, ElfW(Addr) value) noexcept {
    // glibc has added the load address already, except where the section is read-only (the vDSO).
    return reinterpret_cast<T>(value < base ? base + value : value);
}

bool read_module(const dl_phdr_info* info, Module* module) noexcept {
    module->base = info->dlpi_addr;
    module->headers = info->dlpi_phdr;
    module->header_count = info->dlpi_phnum;
    const ElfW(Dyn)* dynamic = nullptr;
    for (std::size_t i = 0; i < info->dlpi_phnum; ++i)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    if (dynamic == nullptr) return false;
    bool plt_is_rela = true;
    for (const ElfW(Dyn)* d = dynamic; d->d_tag != DT_NULL; ++d) {
        switch (d->d_tag) {
            case DT_STRTAB:
                module->strings = at<const char*>(module->base, d->d_un.d_ptr);
                break;
            case DT_SYMTAB:
                module->symbols = at<ElfW(Sym)*>(module->base, d->d_un.d_ptr);
                break;
            case DT_JMPREL:
                module->tables[0] = at<const ElfW(Rela)*>(module->base, d->d_un.d_ptr);
                break;
            case DT_PLTRELSZ:
                module->table_bytes[0] = d->d_un.d_val;
                break;
            case DT_PLTREL:
                plt_is_rela = d->d_un.d_val == DT_RELA;
                break;
            case DT_RELA:
                module->tables[1] = at<const ElfW(Rela)*>(module->base, d->d_un.d_ptr);
                break;
            case DT_RELASZ:
                module->table_bytes[1] = d->d_un.d_val;
                break;
            case DT_GNU_HASH:
                module->gnu_hash = at<const std::uint32_t*>(module->base, d->d_un.d_ptr);
                break;
            default:
                break;
        }
    }
    if (!plt_is_rela) module->tables[0] = nullptr;
    return module->strings != nullptr && module->symbols != nullptr;
}

// A quick no to the many symbols that are not hooked.
class NameFilter {
public:
    NameFilter(const Hook* hooks, std::size_t count) : hooks_(hooks), count_(count) {
        for (std::size_t i = 0; i < count; ++i) bits_.set(place(hooks[i].name));
    }
    const Hook* find(const char* name) const noexcept {
        if (!bits_.test(place(name))) return nullptr;
        for (std::size_t i = 0; i < count_; ++i)
            if (hooks_[i].real != nullptr && *hooks_[i].real != nullptr && ::strcmp(hooks_[i].name, name) == 0) return &hooks_[i];
        return nullptr;
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

template <typename Visit>  // visit(slot, symbol name)
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
            visit(reinterpret_cast<void**>(module.base + rela[i].r_offset), module.strings + module.symbols[symbol].st_name);
        }
    }
}

std::uintptr_t own_base() noexcept {
    Dl_info info{};
    return ::dladdr(reinterpret_cast<void*>(&own_base), &info) != 0 ? reinterpret_cast<std::uintptr_t>(info.dli_fbase) : 0;
}

// The dynamic linker's own slots are its business; ours must reach the real functions.
bool left_alone(const dl_phdr_info* info, std::uintptr_t own) noexcept {
    if (info->dlpi_addr == own) return true;
    const char* name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    const char* slash = ::strrchr(name, '/');
    const char* file = slash == nullptr ? name : slash + 1;
    return ::strncmp(file, "ld-linux", 8) == 0 || ::strncmp(file, "ld-musl", 7) == 0 || ::strncmp(file, "linux-vdso", 10) == 0;
}

std::size_t symbol_count(const Module& module) noexcept {
    if (module.gnu_hash == nullptr) return 0;
    const std::uint32_t buckets = module.gnu_hash[0], first = module.gnu_hash[1], bloom = module.gnu_hash[2];
    const auto* bucket = reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const ElfW(Addr)*>(module.gnu_hash + 4) + bloom);
    const std::uint32_t* chain = bucket + buckets;
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < buckets; ++i) last = bucket[i] > last ? bucket[i] : last;
    if (last < first) return first;
    while ((chain[last - first] & 1) == 0) ++last;
    return last + 1;
}

// One word to change: a call slot, or the value of a symbol (an offset from its module's base; the loader adds the base back).
struct Patch {
    void** where;
    void *ours, *real;
    int protection;  // of its page
    bool is_symbol;
};

// Every word to change in the modules loaded at one moment. Finding them costs a walk over all relocations and symbols, so the
// list is kept and used again while the loader's counters stand still.
struct Plan {
    const NameFilter* filter = nullptr;
    std::vector<Patch> patches;
    unsigned long long adds = 0, subs = 0;
    bool put_in = false;
    int error = 0;
};

void plan_slots(const Module& module, Plan& plan) {
    each_slot(module, [&](void** slot, const char* name) {
        if (const Hook* hook = plan.filter->find(name))
            plan.patches.push_back(
                {slot, hook->ours, *hook->real, module.protection_at(reinterpret_cast<std::uintptr_t>(slot)), false});
    });
}

// The dynamic symbols that define a hooked function. A name may have several versions; all with the same code move.
void plan_symbols(const Module& module, Plan& plan) {
    const std::size_t count = symbol_count(module);
    for (std::size_t i = 1; i < count; ++i) {
        ElfW(Sym) & symbol = module.symbols[i];
        if (symbol.st_shndx == SHN_UNDEF || symbol.st_value == 0 || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
        const Hook* hook = plan.filter->find(module.strings + symbol.st_name);
        if (hook == nullptr) continue;
        const auto real = reinterpret_cast<std::uintptr_t>(*hook->real) - module.base;
        const auto ours = reinterpret_cast<std::uintptr_t>(hook->ours) - module.base;  // wraps
        if (symbol.st_value != real && symbol.st_value != ours) continue;
        auto** value = reinterpret_cast<void**>(&symbol.st_value);
        plan.patches.push_back({value, reinterpret_cast<void*>(ours), reinterpret_cast<void*>(real),
                                module.protection_at(reinterpret_cast<std::uintptr_t>(value)), true});
    }
}

int plan_module(dl_phdr_info* info, std::size_t, void* data) {
    Plan& plan = *static_cast<Plan*>(data);
    plan.adds = info->dlpi_adds;
    plan.subs = info->dlpi_subs;
    Module module;
    const std::uintptr_t own = own_base();
    if (info->dlpi_addr == own || !read_module(info, &module)) return 0;
    if (!left_alone(info, own)) plan_slots(module, plan);
    plan_symbols(module, plan);
    return 0;
}

std::uintptr_t page_of(const Patch& patch) noexcept { return reinterpret_cast<std::uintptr_t>(patch.where) & ~(kPage - 1); }

void store(const Patch& patch, bool put_in) noexcept {
    void* const value = put_in ? patch.ours : patch.real;
    void* const expected = put_in ? patch.real : patch.ours;
    // A slot may still hold the loader's own stub; a symbol or a slot to be put back must hold what we know.
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

// Changes the words, pages that follow each other at a time where they are read-only, and leaves each page as protected as it was.
int carry_out(const std::vector<Patch>& patches, bool put_in) noexcept {
    int error = 0;
    for (std::size_t i = 0, end = 0; i < patches.size(); i = end) {
        end = i + together(patches, i);
        const int protection = patches[i].protection;
        const bool closed = (protection & PROT_WRITE) == 0;
        auto* at = reinterpret_cast<void*>(page_of(patches[i]));
        const std::size_t bytes = page_of(patches[end - 1]) + kPage - page_of(patches[i]);
        const bool open = !closed || ::mprotect(at, bytes, protection | PROT_WRITE) == 0;
        if (!open) error = errno;
        for (std::size_t k = i; open && k < end; ++k) store(patches[k], put_in);
        if (closed && open) ::mprotect(at, bytes, protection);
    }
    return error;
}

// Runs inside the loader's iteration, so that no module comes or goes between the look at the counters and the stores.
int carry_out_if_current(dl_phdr_info* info, std::size_t, void* data) {
    Plan& plan = *static_cast<Plan*>(data);
    if (plan.patches.empty() || info->dlpi_adds != plan.adds || info->dlpi_subs != plan.subs) return 1;
    plan.error = carry_out(plan.patches, plan.put_in);
    return 2;
}

int change_all(const Hook* hooks, std::size_t count, bool put_in) {
    static Plan* const plan = new Plan();  // never destroyed: a recording may outlive static destruction
    plan->put_in = put_in;
    plan->error = 0;
    if (::dl_iterate_phdr(carry_out_if_current, plan) == 2) return plan->error;
    const NameFilter filter(hooks, count);
    plan->filter = &filter;
    plan->patches.clear();
    ::dl_iterate_phdr(plan_module, plan);
    plan->filter = nullptr;
    std::sort(plan->patches.begin(), plan->patches.end(), [](const Patch& a, const Patch& b) { return a.where < b.where; });
    return carry_out(plan->patches, put_in);
}

}  // namespace

namespace {

// An executable at a fixed address (Debian's python) that takes a function's address makes its own call stub that address for
// everybody: an undefined symbol with a value. Through such a stub we would call ourselves.
bool is_call_stub(void* function) noexcept {
    static const bool at_fixed_address = [] {
        ElfW(Addr) base = 1;
        ::dl_iterate_phdr(
            [](dl_phdr_info* program, std::size_t, void* at) { return *static_cast<ElfW(Addr)*>(at) = program->dlpi_addr, 1; },
            &base);
        return base == 0;
    }();
    if (!at_fixed_address) return false;
    Dl_info info{};
    void* entry = nullptr;
    if (::dladdr1(function, &info, &entry, RTLD_DL_SYMENT) == 0 || entry == nullptr) return false;
    return static_cast<const ElfW(Sym)*>(entry)->st_shndx == SHN_UNDEF;
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
        void* candidate = ::dlsym(library, name);
        Dl_info info{};
        link_map* home = nullptr;
        if (candidate != nullptr && ::dladdr1(candidate, &info, reinterpret_cast<void**>(&home), RTLD_DL_LINKMAP) != 0 &&
            home == module)
            found = candidate;
        ::dlclose(library);
    }
    ::dlclose(program);
    return found;
}

}  // namespace

void find_real_functions(Hook* hooks, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        if (*hooks[i].real != nullptr) continue;
        void* found = ::dlsym(RTLD_DEFAULT, hooks[i].name);
        if (found != nullptr && is_call_stub(found)) found = defined_in_a_library(hooks[i].name);
        *hooks[i].real = found;
    }
}

std::string install(const Hook* hooks, std::size_t count) {
    const int error = change_all(hooks, count, true);
    if (error == 0) return {};
    return std::string("a read-only page of a loaded module cannot be changed (") + ::strerror(error) +
           "), so some calls and the modules loaded from now on are not recorded";
}

void restore(const Hook* hooks, std::size_t count) { change_all(hooks, count, false); }

bool in_interpreter(const void* address) noexcept {
    static void* const home = [] {
        Dl_info info{};
        void* python = ::dlsym(RTLD_DEFAULT, "PyObject_Malloc");
        return python != nullptr && ::dladdr(python, &info) != 0 ? info.dli_fbase : nullptr;
    }();
    Dl_info info{};
    return home != nullptr && ::dladdr(address, &info) != 0 && info.dli_fbase == home;
}

}  // namespace hiwater::interpose
