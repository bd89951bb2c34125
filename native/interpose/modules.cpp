#include "interpose/modules.h"

#include <dlfcn.h>
#include <elf.h>
#include <string.h>

#include "base/own_library.h"

namespace hiwater::interpose {

namespace {

// A module's table of symbols by the hash of their names.
struct GnuHash {
    std::uint32_t buckets, first;  // symbols from `first` on are in the table
    const std::uint32_t *bucket, *chain;
    explicit GnuHash(const std::uint32_t* table) noexcept
        : buckets(table[0]),
          first(table[1]),
          bucket(reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const ElfW(Addr) *>(table + 4) + table[2])),
          chain(bucket + buckets) {}
};

}  // namespace

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
    return module->strings != nullptr && module->symbols != nullptr;
}

std::size_t symbol_count(const Module& module) noexcept {
    if (module.gnu_hash == nullptr) return 0;
    const auto [buckets, first, bucket, chain] = GnuHash(module.gnu_hash);
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < buckets; ++i) last = bucket[i] > last ? bucket[i] : last;
    if (last < first) return first;
    while ((chain[last - first] & 1) == 0) ++last;
    return last + 1;
}

void* function_in(const Module& module, const char* name) noexcept {
    if (module.gnu_hash == nullptr) return nullptr;
    std::uint32_t hash = 5381;
    for (const char* c = name; *c != '\0'; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
    const auto [buckets, first, bucket, chain] = GnuHash(module.gnu_hash);
    for (std::uint32_t i = buckets == 0 ? 0 : bucket[hash % buckets]; i >= first && i != 0; ++i) {
        const ElfW(Sym) & symbol = module.symbols[i];
        if ((chain[i - first] | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF &&
            ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && ::strcmp(module.strings + symbol.st_name, name) == 0)
            return reinterpret_cast<void*>(module.base + symbol.st_value);
        if ((chain[i - first] & 1) != 0) break;
    }
    return nullptr;
}

}  // namespace hiwater::interpose
