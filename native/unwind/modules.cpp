#include "unwind/modules.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

namespace hiwater::unwind {

namespace {

// glibc 2.35's, by its manual: `struct dl_find_object` of x86-64. Libraries built for older systems declare it
// themselves.
struct Found {
    unsigned long long flags;
    void *map_start, *map_end;
    link_map* module;
    void* frame_header;
    unsigned long long reserved[7];
};
using Find = int (*)(void* address, Found* out);
Find g_find = nullptr;

std::uintptr_t number_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

Bytes bytes_of(std::uintptr_t bias, const ElfW(Phdr) & segment) {
    const auto* const start = reinterpret_cast<const std::uint8_t*>(bias + segment.p_vaddr);
    return {start, start + segment.p_filesz};
}

bool contains(const Bytes& bytes, std::uintptr_t address) {
    return address >= number_of(bytes.start) && address < number_of(bytes.end);
}

bool is_within(const ElfW(Phdr) & inner, const ElfW(Phdr) & outer) {
    return inner.p_vaddr >= outer.p_vaddr && inner.p_vaddr - outer.p_vaddr <= outer.p_memsz &&
           inner.p_filesz <= outer.p_memsz - (inner.p_vaddr - outer.p_vaddr);
}

void write_hexadecimal(const std::uint8_t* bytes, std::size_t count, char* out) {
    static constexpr char kDigits[] = "0123456789abcdef";
    for (std::size_t i = 0; i < count; ++i) {
        *out++ = kDigits[bytes[i] >> 4];
        *out++ = kDigits[bytes[i] & 15];
    }
    *out = '\0';
}

// The build-id among a segment's notes. The last note may end without what would fill it up.
bool find_build_id(const Bytes& notes, char* out) {
    const std::uint8_t* at = notes.start;
    while (notes.end - at >= static_cast<std::ptrdiff_t>(sizeof(ElfW(Nhdr)))) {
        ElfW(Nhdr) note;
        ::memcpy(&note, at, sizeof note);
        at += sizeof note;
        const auto left = static_cast<std::size_t>(notes.end - at);
        const std::size_t name = round_up(note.n_namesz, 4), content = round_up(note.n_descsz, 4);
        if (left < name || left - name < note.n_descsz) return false;
        const bool is_it = note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && ::memcmp(at, "GNU", 4) == 0;
        if (is_it && note.n_descsz != 0 && note.n_descsz < Module::kMostIdentity / 2)
            return write_hexadecimal(at + name, note.n_descsz, out), true;
        if (left - name < content) return false;
        at += name + content;
    }
    return false;
}

// Of a file without a build-id: the file's header and those of its segments, which tell where everything lies.
void write_sum(const ElfW(Ehdr) & file, const ElfW(Phdr) * segments, char* out) {
    std::uint64_t sum = 0xcbf29ce484222325ULL;  // FNV-1a, 64 bits
    const auto add = [&sum](const void* bytes, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i)
            sum = (sum ^ static_cast<const std::uint8_t*>(bytes)[i]) * 0x100000001b3ULL;
    };
    add(&file, sizeof file);
    add(segments, file.e_phnum * sizeof *segments);
    ::snprintf(out, Module::kMostIdentity, "headers:%016llx", static_cast<unsigned long long>(sum));
}

// The first page of a module has the file's header and those of its segments: the loader reads them there itself.
const ElfW(Ehdr) * file_header(const Found& found) {
    const auto* const file = static_cast<const ElfW(Ehdr)*>(found.map_start);
    if (::memcmp(file->e_ident, ELFMAG, SELFMAG) != 0 || file->e_phentsize != sizeof(ElfW(Phdr))) return nullptr;
    return file->e_phoff <= kPage && file->e_phoff + file->e_phnum * sizeof(ElfW(Phdr)) <= kPage ? file : nullptr;
}

// A module whose headers are elsewhere has its path alone.
Module read(const Found& found, std::uintptr_t address) {
    const std::uintptr_t bias = found.module->l_addr;
    Module out{
        number_of(found.map_start), number_of(found.map_end), bias, {}, {}, nullptr, found.module->l_name, {}, 0};
    const ElfW(Ehdr)* const file = file_header(found);
    if (file == nullptr) return out;
    const auto* const segments = reinterpret_cast<const ElfW(Phdr)*>(out.start + file->e_phoff);
    const auto is_loaded = [](const ElfW(Phdr) & segment) {
        return segment.p_type == PT_LOAD && (segment.p_flags & PF_R) != 0;
    };
    for (std::size_t i = 0; i < file->e_phnum; ++i) {
        if (!is_loaded(segments[i])) continue;
        const Bytes bytes = bytes_of(bias, segments[i]);
        if (contains(bytes, number_of(found.frame_header))) out.tables = bytes;
        if (contains(bytes, address)) out.code = bytes;
    }
    if (out.tables.start != nullptr) out.header = static_cast<const std::uint8_t*>(found.frame_header);
    write_sum(*file, segments, out.identity);
    // Where notes are in no segment that was loaded, there may be nothing.
    for (std::size_t i = 0; i < file->e_phnum; ++i)
        for (std::size_t j = 0; segments[i].p_type == PT_NOTE && j < file->e_phnum; ++j)
            if (is_loaded(segments[j]) && is_within(segments[i], segments[j]) &&
                find_build_id(bytes_of(bias, segments[i]), out.identity))
                return out;
    return out;
}

}  // namespace

bool prepare() noexcept {
#if defined(__x86_64__)
    if (g_find == nullptr) g_find = reinterpret_cast<Find>(::dlsym(RTLD_DEFAULT, "_dl_find_object"));
#endif
    return g_find != nullptr;
}

Module* Modules::at(std::uintptr_t address) {
    for (Module& module : modules_)
        if (address >= module.start && address < module.end) return &module;
    Found found{};
    if (g_find == nullptr || g_find(reinterpret_cast<void*>(address), &found) != 0) return nullptr;
    modules_.push_back(read(found, address));
    return &modules_[modules_.size() - 1];
}

}  // namespace hiwater::unwind
