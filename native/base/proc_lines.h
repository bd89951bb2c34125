// The lines of files of /proc, read without a heap of our own that grows with them.
#pragma once

#include <stdlib.h>
#include <string.h>

#include <cstddef>
#include <cstdint>

#include "base/own_file.h"
#include "base/uncopied.h"

namespace hiwater {

// One line after another. A line longer than the buffer comes in pieces.
template <std::size_t kBuffer>
class ProcLines : Uncopied {
public:
    explicit ProcLines(OwnFile& file) noexcept : file_(file) {}

    // The next line with NUL for its newline, or null.
    char* next() noexcept {
        for (;;) {
            char* newline = static_cast<char*>(::memchr(text_ + from_, '\n', to_ - from_));
            if (newline != nullptr) {
                *newline = '\0';
                char* line = text_ + from_;
                from_ = static_cast<std::size_t>(newline - text_) + 1;
                return line;
            }
            if (!refill()) return nullptr;
        }
    }

private:
    bool refill() noexcept {
        ::memmove(text_, text_ + from_, to_ - from_);
        to_ -= from_;
        from_ = 0;
        if (to_ == sizeof text_) text_[to_ - 1] = '\n';
        const ssize_t n = to_ == sizeof text_ ? 0 : file_.read(text_ + to_, sizeof text_ - to_, offset_);
        if (n > 0) to_ += static_cast<std::size_t>(n), offset_ += n;
        return n > 0 || to_ == sizeof text_;
    }

    const OwnFile::Reading file_;
    off_t offset_ = 0;
    std::size_t from_ = 0, to_ = 0;
    char text_[kBuffer];
};

// A mapping's line in /proc/self/maps and smaps: "start-end mode offset device inode   path".
class MapsLine {
public:
    std::uintptr_t start = 0, end = 0;
    char mode[8] = {};
    const char* path = "";  // in the line

    // False where it is another line.
    bool read(const char* line) noexcept {
        char* at = nullptr;
        start = ::strtoul(line, &at, 16);
        if (at == line || *at != '-') return false;
        end = ::strtoul(at + 1, &at, 16);
        for (std::size_t i = 0; *at == ' ' && i < 4 && at[1 + i] != '\0'; ++i) mode[i] = at[1 + i];
        if (mode[3] == '\0') return false;
        path = at;
        for (int field = 0; field < 4; ++field) path = after_field(path);
        while (*path == ' ') ++path;
        return true;
    }

private:
    static const char* after_field(const char* at) noexcept {
        while (*at == ' ') ++at;
        return at + ::strcspn(at, " ");
    }
};

}  // namespace hiwater
