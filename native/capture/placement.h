// How a file of ours comes to its name: it is made beside it under a name that nobody else has, and moved there when it is whole. No file
// that is there is ever truncated, since other processes may have it mapped. No link is followed. A capture that a living process
// made is not replaced.
#pragma once

#include <limits.h>
#include <sys/types.h>

namespace hiwater::capture {

// A path on the stack: these functions are called where no memory may be allocated.
struct PathBuffer {
    char text[PATH_MAX] = {};
    // False where it does not fit.
    bool set(const char* path) noexcept;
};

// Makes an empty file with exactly these permissions in the folder of `path`, open for reading and writing. Returns its descriptor, or -1
// with errno set.
int make_beside(const char* path, mode_t mode, PathBuffer* made) noexcept;

enum class Over { captures, nothing };  // what may be replaced

// Moves `made` to `path`, in the place of a capture that is there, or of any other file. Returns 0 or an errno value: EBUSY where a capture
// is there that another living process made, ELOOP for a link, EEXIST for what is no file. Two recorders that come at once cannot replace
// each other. Over::nothing: EBUSY for any file.
int place(const char* made, const char* path, Over over = Over::captures) noexcept;

// The same, and where that capture is in the way, beside it: run.hiw becomes run.PID.hiw. `placed` is where it is now.
int place_or_evade(const char* made, const char* path, PathBuffer* placed, Over over = Over::captures) noexcept;

// Whether the file of this device and inode is at the path.
bool is_at(const char* path, dev_t device, ino_t inode) noexcept;

}  // namespace hiwater::capture
