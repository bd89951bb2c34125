// Hooks of jumps to where setjmp() was called: a signal's handler may leave the recorder's work in its midst by one.
#pragma once

namespace hiwater::interpose {

void hook_longjmp(const void* place, int value);
void hook__longjmp(const void* place, int value);
void hook_siglongjmp(const void* place, int value);
void hook___longjmp_chk(const void* place, int value);

}  // namespace hiwater::interpose
