// A folder that nobody else may write to. Others may be allowed to write to the folder that it is in: what they put in
// its place is neither waited for nor written to. src/hiwater/_os/trust.py is the same in Python.
#pragma once

#include <sys/types.h>

namespace hiwater {

// A descriptor of the folder that leads to its entries alone (O_PATH), and who owns it; -1 where it is another user's,
// a link or no folder. These functions take no memory and no lock.
int open_own_folder(const char* path, uid_t* owner) noexcept;

}  // namespace hiwater
