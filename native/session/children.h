// The processes that a recorded program starts: what tells a Python child to record itself, and the index of the run.
//
// The run's folder has a capture for each of them, and the index: a file to which every process of the run appends
// rows. A row is one JSON object, padded to kRowBytes and written by one call, so that rows of several processes do not
// mix. docs/formats.md describes them.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "accounting/accounts.h"
#include "capture/placement.h"
#include "session/options.h"

namespace hiwater {

// Functions that write rows take no memory and no lock: they are called in children of vfork, too.
class Children {
public:
    // `options` of the recording that begins in this process, with its capture at `path`.
    void begin(const StartOptions& options, const char* path);
    void end() noexcept { variable_.text[0] = '\0'; }
    // Also in the child of a fork that is not recorded itself, and may execute an interpreter.
    bool are_recorded() const noexcept { return variable_.text[0] != '\0'; }
    // The entry for the environment of a child, "NAME=value".
    const char* variable() const noexcept { return variable_.text; }
    // In the child of a fork: the options for its own recording.
    const StartOptions* begin_in_fork();
    // Whether this process is itself a child of the run.
    bool is_child() const noexcept { return is_child_; }
    bool was_forked() const noexcept { return was_forked_; }
    // Whether the run has a folder: another process records itself, whoever started it, a shell perhaps.
    bool have_begun() const noexcept { return are_recorded() && ::access(folder_.text, F_OK) == 0; }

    // `child` executes a Python interpreter, or is about to.
    void note_started(pid_t child, pid_t parent, const char* program, char* const* arguments) const noexcept;
    void note_killed(pid_t child, int signal) const noexcept;
    // This process is a child of the run and cannot be recorded, or named in the index. Its nearest recorded ancestor
    // counts it.
    void note_refused(int error) const noexcept;
    // How many children of this process called that, and the error of the last one.
    struct Refused {
        std::uint32_t children = 0;
        int error = 0;
    };
    Refused refused() const noexcept { return refused_pid_ == ::getpid() ? *refused_ : Refused(); }
    static constexpr bool is_small(std::int64_t peak_bytes) noexcept { return peak_bytes < kSmallBytes; }
    // Whether a child with that peak leaves a row alone: it is small, and the folder has many captures.
    bool is_row_enough(std::int64_t peak_bytes) const noexcept;
    // This child of the run has ended. Its capture is at `path`; "": it leaves none. If the exit code is
    // not known yet, the row waits for exit().
    struct Ended {
        capture::Header header;
        Accounts::Figures peak, total;
    };
    void note_ended(const Ended& ended, const char* path) noexcept;

private:
    static constexpr std::size_t kRowBytes = 512;
    static constexpr std::int64_t kMostCaptures = 16, kSmallBytes = 1 << 20;

    bool set_variable(const std::string& value);  // for children of this process
    // Descriptors; -1 where another user put something in their place. The folder is made if there is none.
    int open_folder(uid_t* owner) const noexcept;
    int open_index() const noexcept;
    static void append(int index, char* row, int length) noexcept;
    bool await_exit_code(const Ended& ended, const char* path) noexcept;
    void note_exit_code(int code) noexcept;
    void append_ended(const Ended& ended, const char* path) const noexcept;

    Refused* refused_ = nullptr;  // in a page that children of forks share with the process that mapped it
    pid_t refused_pid_ = 0;
    StartOptions* options_ = nullptr;
    capture::PathBuffer folder_, variable_;
    bool is_child_ = false, was_forked_ = false;
    pid_t parent_ = 0;
    // Of a child whose recording has ended, and whose exit code is not known: the interpreter is in its last stage.
    Ended awaiting_{};
    capture::PathBuffer awaiting_path_;
    pid_t awaiting_pid_ = 0;
};

inline constinit Children children;

}  // namespace hiwater
