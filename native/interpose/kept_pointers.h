// Pointers to hooked functions that the program took before they were hooked: no slot and no symbol leads to those any
// more.
//
// Two places are known. What ctypes and cffi keep passes through libffi's ffi_call(), whose hook exchanges the function
// on the way. What a module keeps in its writable data is exchanged in place, and put back when the hooks go. Pointers
// in heap blocks, on stacks and in generated code are not found.
#pragma once

#include <vector>

#include "interpose/slots.h"

namespace hiwater::interpose {

// Appends hooks of ffi_call() for the libffi libraries that are loaded now.
void add_foreign_call_hooks(std::vector<Hook>* hooks);

// From now on calls by libffi of a hooked function reach ours, while a recording runs.
void exchange_foreign_calls(const std::vector<Hook>& hooks) noexcept;

// Exchanges hooked functions for ours in the writable data of all modules, or ours for them. Reads only pages that the
// program has written to; about a microsecond each.
void exchange_in_data(const std::vector<Hook>& hooks, bool put_in) noexcept;

}  // namespace hiwater::interpose
