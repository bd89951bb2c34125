// Sending calls of named functions to ours, in the running process, and sending them back.
//
// Two moves do it, both of them once, at the start:
//   1. Each loaded module's call slots (JUMP_SLOT, GLOB_DAT and absolute relocations) that name a hooked function are
//      overwritten.
//   2. The symbol-table entry of the function, in the module that defines it, is pointed at ours. From then on the
//      loader itself binds every module loaded later to us — constructors included — and dlsym and ctypes get our
//      function, too. So nothing has to be done at a dlopen, and dlopen and dlsym need no hooks that could disturb
//      RUNPATH or RTLD_NEXT.
// Pointers taken while we were in place may be kept for ever, so our functions stay callable after the restore and then
// only pass on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct dl_phdr_info;

namespace hiwater::interpose {

struct Hook {
    enum class Of {
        heap,       // malloc's family of the C library
        mappings,   // what allocators take memory from: left alone in libraries that are allocators and nothing else
        allocator,  // an entry of another allocator
        process,    // all else
    };
    const char* name;
    void* ours;
    void** real;  // what it holds is null where nobody defines the name
    Of of;
    bool is_global;  // whether the program's global scope calls this one by the name
};

// The function that a hook stands in for, which has the hook's type. Null where nobody defines it.
template <auto kHook>
inline constinit decltype(kHook) real = nullptr;

template <auto kHook>
Hook hook_of(const char* name, Hook::Of of) noexcept {
    return {name, reinterpret_cast<void*>(kHook), reinterpret_cast<void**>(&real<kHook>), of, true};
}

// Looks up the C library's functions: those of the heap in itself, others as the program's global scope calls them.
// Names nobody defines keep null and are left alone.
void find_real_functions(Hook* hooks, std::size_t count) noexcept;

// What the program's global scope calls the name, or null; never an executable's own call stub.
void* global_function(const char* name) noexcept;

// The last part of a module's path; "" for the program itself.
const char* file_name_of(const dl_phdr_info* info) noexcept;

// Whether a module is the dynamic linker or the kernel's own.
bool is_linker(const dl_phdr_info* info) noexcept;

// Puts every hook with a real function in place. Returns an empty text, or why the later-loaded modules cannot be
// followed (the modules loaded now are patched in any case).
std::string install(const Hook* hooks, std::size_t count);

// Puts every slot and symbol back, in every module loaded by now.
void restore(const Hook* hooks, std::size_t count);

struct CodeRange {
    std::uintptr_t start = 0, end = 0;
    bool contains(const void* address) const noexcept {
        const auto at = reinterpret_cast<std::uintptr_t>(address);
        return at >= start && at < end;
    }
};

// The piece of a loaded module that an address lies in; empty if it lies in none. Calls the loader.
CodeRange code_around(const void* address) noexcept;

// Whether an address lies in the code of the Python interpreter (executable or libpython), once find_real_functions()
// has been called. Calls nothing.
bool in_interpreter(const void* address) noexcept;

}  // namespace hiwater::interpose
