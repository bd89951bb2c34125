// The library that this is linked into.
#pragma once

// Where it begins and ends, from the linker: no call of the loader is needed.
extern "C" [[gnu::visibility("hidden")]] const char __ehdr_start, _end;
