// The loaded modules that return addresses were met in, each with its tables. Found by glibc's `_dl_find_object`, which
// takes no lock of the loader's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/pages.h"
#include "unwind/cfi.h"

namespace hiwater::unwind {

// Whether native stacks can be walked in this process. To be called before anything else, outside of hooks.
bool prepare() noexcept;

struct Module {
    static constexpr std::size_t kMostIdentity = 64;

    std::uintptr_t start, end, bias;
    Bytes tables, code;
    const std::uint8_t* header;    // of the table of functions; null: it has none
    const char* path;              // the loader's; "" for the program itself
    char identity[kMostIdentity];  // build-id in hexadecimal; else "headers:" and a sum of the file's headers; or ""
    std::uint32_t code_number;     // that the recorder gave it, 0 at first
};

class Modules {
public:
    // The module whose code contains an address; null where there is none.
    Module* at(std::uintptr_t address);
    void forget() noexcept { modules_.reset(); }

private:
    PageVector<Module> modules_;
};

}  // namespace hiwater::unwind
