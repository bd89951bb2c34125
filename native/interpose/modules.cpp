#include "interpose/modules.h"

#include <dlfcn.h>
#include <elf.h>
#include <string.h>

namespace hiwater::interpose {

namespace {

template <typename T>
T at(ElfW(Addr) base, ElfW(Addr) value) noexcept {
    // glibc has added the load address already, except where the section is read-only (the vDSO).
    return reinterpret_cast<T>(value < base ? base + value : value);
}

}  // namespace

std::uintptr_t base_of(const void* address) noexcept {
    Dl_info info{};
    return address != nullptr && ::dladdr(address, &info) != 0 ? reinterpret_cast<std::uintptr_t>(info.dli_fbase) : 0;
}

// The linker's name for the first byte of our own file. Without a call of the loader: this is read inside iterations over its modules.
extern "C" [[gnu::visibility("hidden")]] const ElfW(Ehdr) __ehdr_start;

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

void* function_in(const Module& module, const char* name) noexcept {
    if (module.gnu_hash == nullptr) return nullptr;
    std::uint32_t hash = 5381;
    for (const char* c = name; *c != '\0'; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
    const std::uint32_t buckets = module.gnu_hash[0], first = module.gnu_hash[1], bloom = module.gnu_hash[2];
    const auto* bucket = reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const ElfW(Addr)*>(module.gnu_hash + 4) + bloom);
    const std::uint32_t* chain = bucket + buckets;
    for (std::uint32_t i = buckets == 0 ? 0 : bucket[hash % buckets]; i >= first && i != 0; ++i) {
        const ElfW(Sym) & symbol = module.symbols[i];
        if ((chain[i - first] | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
            ::strcmp(module.strings + symbol.st_name, name) == 0)
            return reinterpret_cast<void*>(module.base + symbol.st_value);
        if ((chain[i - first] & 1) != 0) break;
    }
    return nullptr;
}

}  // namespace hiwater::interpose
