// The dynamic section of a loaded module: where its relocations and symbols are.
#pragma once

#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace hiwater::interpose {

// What of a loaded module's dynamic section we read.
struct Module {
    ElfW(Addr) base = 0;
    const ElfW(Phdr) * headers = nullptr;
    std::size_t header_count = 0;
    const char* strings = nullptr;
    ElfW(Sym) * symbols = nullptr;
    const ElfW(Rela) * tables[2] = {};  // relocations with symbols
    std::size_t table_bytes[2] = {};
    const std::uint32_t* gnu_hash = nullptr;

    bool holds(std::uintptr_t address) const noexcept {
        for (std::size_t i = 0; i < header_count; ++i) {
            const ElfW(Phdr) & p = headers[i];
            if (p.p_type == PT_LOAD && address >= base + p.p_vaddr && address < base + p.p_vaddr + p.p_memsz)
                return true;
        }
        return false;
    }

    // The protection the module's file asks for at an address; read-only for what RELRO protects after loading.
    int protection_at(std::uintptr_t address) const noexcept {
        int protection = PROT_READ;
        for (std::size_t i = 0; i < header_count; ++i) {
            const ElfW(Phdr) & p = headers[i];
            if (address < base + p.p_vaddr || address >= base + p.p_vaddr + p.p_memsz) continue;
            if (p.p_type == PT_GNU_RELRO) return PROT_READ;
            if (p.p_type == PT_LOAD)
                protection = (p.p_flags & PF_R ? PROT_READ : 0) | (p.p_flags & PF_W ? PROT_WRITE : 0) |
                             (p.p_flags & PF_X ? PROT_EXEC : 0);
        }
        return protection;
    }
};

// Where the module that holds an address begins, or 0.
std::uintptr_t base_of(const void* address) noexcept;
// Of our own module.
std::uintptr_t own_base() noexcept;

// How many modules the loader has added and removed: while both stand still, the same modules are loaded.
struct LoaderCounts {
    unsigned long long adds = 0, subs = 0;
    bool operator==(const LoaderCounts&) const = default;
};
LoaderCounts loader_counts() noexcept;

// False for a module without symbols.
bool read_module(const dl_phdr_info* info, Module* module) noexcept;

// A module's table of the symbols that it defines, by the hash of their names.
struct GnuHash {
    std::uint32_t buckets, first;  // symbols from `first` on are in the table
    const std::uint32_t *bucket, *chain;
    explicit GnuHash(const std::uint32_t* table) noexcept
        : buckets(table[0]),
          first(table[1]),
          bucket(reinterpret_cast<const std::uint32_t*>(reinterpret_cast<const ElfW(Addr) *>(table + 4) + table[2])),
          chain(bucket + buckets) {}
};

// Visits the functions of this name that the module itself defines: one for each version. Needs a GNU hash table.
template <typename Visit>  // visit(symbol)
void each_function_named(const Module& module, const char* name, Visit visit) noexcept {
    if (module.gnu_hash == nullptr) return;
    std::uint32_t hash = 5381;
    for (const char* c = name; *c != '\0'; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
    const auto [buckets, first, bucket, chain] = GnuHash(module.gnu_hash);
    for (std::uint32_t i = buckets == 0 ? 0 : bucket[hash % buckets]; i >= first && i != 0; ++i) {
        ElfW(Sym) & symbol = module.symbols[i];
        if ((chain[i - first] | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 &&
            ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && ::strcmp(module.strings + symbol.st_name, name) == 0)
            visit(symbol);
        if ((chain[i - first] & 1) != 0) break;
    }
}

// The address of a function that the module itself defines, or null. Needs a GNU hash table.
void* function_in(const Module& module, const char* name) noexcept;

}  // namespace hiwater::interpose
