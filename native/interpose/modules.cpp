#include "interpose/modules.h"

#include <dlfcn.h>
#include <elf.h>
#include <string.h>

#include "base/own_library.h"

namespace hiwater::interpose {

std::uintptr_t base_of(const void* address) noexcept {
    Dl_info info{};
    return address != nullptr && ::dladdr(address, &info) != 0 ? reinterpret_cast<std::uintptr_t>(info.dli_fbase) : 0;
}

// Without a call of the loader: this is read inside iterations over its modules.
std::uintptr_t own_base() noexcept { return reinterpret_cast<std::uintptr_t>(&__ehdr_start); }

LoaderCounts loader_counts() noexcept {
    LoaderCounts counts;
    ::dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* out) {
            *static_cast<LoaderCounts*>(out) = {info->dlpi_adds, info->dlpi_subs};
            return 1;
        },
        &counts);
    return counts;
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
    const auto value = [dynamic](ElfW(Sxword) tag) -> ElfW(Addr) {
        for (const ElfW(Dyn)* d = dynamic; d->d_tag != DT_NULL; ++d)
            if (d->d_tag == tag) return d->d_un.d_ptr;
        return 0;
    };
    const auto find = [&]<typename T>(ElfW(Sxword) tag, T** out) {
        // glibc has added the load address already, except where the section is read-only (the vDSO).
        if (const ElfW(Addr) at = value(tag); at != 0)
            *out = reinterpret_cast<T*>(at < module->base ? module->base + at : at);
    };
    find(DT_STRTAB, &module->strings);
    find(DT_SYMTAB, &module->symbols);
    find(DT_GNU_HASH, &module->gnu_hash);
    if (value(DT_PLTREL) == DT_RELA) find(DT_JMPREL, &module->tables[0]);
    find(DT_RELA, &module->tables[1]);
    module->table_bytes[0] = value(DT_PLTRELSZ);
    module->table_bytes[1] = value(DT_RELASZ);
    if (const std::size_t nameless = value(DT_RELACOUNT) * sizeof(ElfW(Rela)); nameless <= module->table_bytes[1]) {
        if (module->tables[1] != nullptr) module->tables[1] += value(DT_RELACOUNT);
        module->table_bytes[1] -= nameless;
    }
    return module->strings != nullptr && module->symbols != nullptr;
}

void* function_in(const Module& module, const char* name) noexcept {
    void* found = nullptr;
    each_function_named(module, name, [&](const ElfW(Sym) & symbol) {
        if (found == nullptr) found = reinterpret_cast<void*>(module.base + symbol.st_value);
    });
    return found;
}

}  // namespace hiwater::interpose
