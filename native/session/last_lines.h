// The last lines of `hiwater run` where they are about several processes, or where a signal ends this one: another
// process reads the captures and writes them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "base/uncopied.h"

namespace hiwater {

class LastLines : Uncopied {
public:
    // The program that writes the lines and its arguments; it gets the number of a descriptor as one more, and writes a
    // byte there once it has written the lines. Without a program there are none. They are of this process alone, and
    // of no child.
    void begin(const std::vector<std::string>& command);
    // Whether they were written. Waits for that.
    bool write() noexcept;
    // The process dies of a signal, in whose handler this is called. Nothing of the program may run on for long: so it
    // waits only where this is its only thread, or where all processes around it end with this one (its parent is the
    // first process of a container).
    void write_at_death() noexcept;

private:
    // Starts the program. Returns the descriptor that gets the byte; -1 where that fails.
    int start() noexcept;

    char** arguments_ = nullptr;  // on pages of its own, with their text
    std::size_t bytes_ = 0;
    char descriptor_[16] = {};
    void* stack_ = nullptr;
    std::atomic<pid_t> pid_{0};  // 0: there are none, or they are being written
};

inline constinit LastLines last_lines;

}  // namespace hiwater
