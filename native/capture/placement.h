// How a file of ours gets its name: it is created in the same folder under a unique name, and moved to its path when it
// is complete. An existing file is never truncated, since other processes may have mapped it. No link is followed. A
// capture that a living process made is not replaced.
#pragma once

#include <limits.h>
#include <sys/types.h>

#include <cstdint>

namespace hiwater::capture {

// A path on the stack: these functions are called where no memory may be allocated.
struct PathBuffer {
    char text[PATH_MAX] = {};
    // False where it does not fit.
    bool set(const char* path) noexcept;
};

// Creates an empty file with exactly these permissions in the folder of `path`, open for reading and writing. Returns
// its descriptor, or -1 with errno set.
int create_temporary(const char* path, mode_t mode, PathBuffer* made) noexcept;

enum class Over { captures, nothing };  // what may be replaced

// Moves `made` to `path`, in the place of a capture that is there, or of any other file. Returns 0 or an errno value:
// EBUSY where a capture is there that another living process made, ELOOP for a link, EEXIST for what is no file. Two
// recorders that come at once cannot replace each other. Over::nothing: EBUSY for any file.
int place(const char* made, const char* path, Over over = Over::captures) noexcept;

// The same. If such a capture is in the way, run.hiw becomes run.PID.hiw. `placed` is the final path.
int place_or_evade(const char* made, const char* path, PathBuffer* placed, Over over = Over::captures) noexcept;

// How the process that wrote a capture ended, as far as its header says.
struct Ending {
    std::uint32_t pid;
    std::uint64_t ended_unix_ns;  // the last sign of life
    std::int64_t resident_peak_bytes;
    std::uint64_t used_bytes, limit_bytes;  // of the limit that was nearest; 0 where none was
    bool is_orderly, is_of_this_boot;
    int signal;  // that ended it, left to its default; 0: none, or not known
};
// False where there is no capture at `path`, or its process lives.
bool read_ending(const char* path, Ending* out) noexcept;

// Whether the file of this device and inode is at the path.
bool is_at(const char* path, dev_t device, ino_t inode) noexcept;

}  // namespace hiwater::capture
