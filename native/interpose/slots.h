// Sending calls of named functions to ours, in the running process, and sending them back.
//
// Two moves do it, both of them once, at the start:
//   1. Each loaded module's call slots (JUMP_SLOT, GLOB_DAT and absolute relocations) that name a hooked function are overwritten.
//   2. The symbol-table entry of the function, in the module that defines it, is pointed at ours. From then on the loader itself
//      binds every module loaded later to us — constructors included — and dlsym and ctypes get our function too. So nothing
//      has to be done at a dlopen, and dlopen and dlsym need no hooks that could disturb RUNPATH or RTLD_NEXT.
// Pointers taken while we were in place may be kept for ever, so our functions stay callable after the restore and then only pass on.
#pragma once

#include <cstddef>
#include <string>

namespace hiwater::interpose {

struct Hook {
    const char* name;
    void* ours;
    void** real;  // filled by find_real_functions()
};

// Looks up what the program's global scope calls each name. Names nobody defines keep null and are left alone.
void find_real_functions(Hook* hooks, std::size_t count) noexcept;

// Puts every hook with a real function in place. Returns an empty text, or why the later-loaded modules cannot be followed
// (the modules loaded now are patched in any case).
std::string install(const Hook* hooks, std::size_t count);

// Puts every slot and symbol back, in every module loaded by now.
void restore(const Hook* hooks, std::size_t count);

// Whether an address lies in the code of the Python interpreter (executable or libpython).
bool in_interpreter(const void* address) noexcept;

}  // namespace hiwater::interpose
