// Where the figures of lines lie: in this process's memory, or in a file that another process reads: a child's parent,
// when the child is gone, however it ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/uncopied.h"

namespace hiwater::lines {

struct LineThread;

struct LineFigure {
    std::uint64_t calls = 0;
    std::int64_t kept_bytes = 0;  // live at its end minus live at its start
    std::int64_t allocated_bytes = 0;
    std::int64_t peak_bytes = 0;      // the highest of one call, above the live bytes at that call's start
    std::int64_t resident_bytes = 0;  // resident at its end minus resident at its start
    std::int64_t resident_start_bytes = 0, resident_end_bytes = 0;  // of the last segment that ended
    std::int64_t resident_highest_bytes = 0;                        // at the end of any

    const LineThread* opener =
        nullptr;  // the thread that has it open, `open` times; others that do look through their own stack
    std::uint32_t open = 0;
};

// A function's figures. Behind it lie those of its lines, and its label.
struct FunctionFigures : Uncopied {
    std::uint32_t bytes = 0;  // of all this
    std::int32_t first_line = 0;
    std::uint32_t line_count = 0, label_bytes = 0;
    std::uint64_t calls = 0;                // frames taken in by a line, those of nested code left out
    std::int64_t resident_first_bytes = 0;  // at the first of them

    std::span<LineFigure> lines() noexcept { return {reinterpret_cast<LineFigure*>(this + 1), line_count}; }
    std::span<const LineFigure> lines() const noexcept {
        return {reinterpret_cast<const LineFigure*>(this + 1), line_count};
    }
    std::string_view label() const noexcept {
        return {reinterpret_cast<const char*>(lines().data() + line_count), label_bytes};
    }
    void clear() noexcept;
};

class FigureRoom : Uncopied {
public:
    ~FigureRoom();

    // They stay where they are until the room goes. Throws bad_alloc. The caller says by the label what they are of.
    FunctionFigures& add(std::int32_t first_line, std::int32_t last_line, std::string_view label);
    // Puts all figures into a new file, those of functions that are added later, too. There they are zero. Returns 0 or
    // an errno value: they then are where they were, as are those that find no room in the file.
    int move_to(const char* path);
    // Calls back with the figures of each function in such a file.
    template <typename Call>
    static void each_in(std::string_view contents, const Call& call);

private:
    struct Piece {
        std::byte* at;
        std::size_t bytes, used;
    };
    static constexpr std::size_t kPiece = 64 * 1024;  // each begins at a multiple of it in the file

    bool put_into_file(int fd, const Piece& piece, std::size_t offset) noexcept;
    template <typename Call>
    static void each_of(const std::byte* at, std::size_t bytes, const Call& call);

    std::vector<Piece> pieces_;
    std::string path_;  // empty: in memory
};

template <typename Call>
void FigureRoom::each_of(const std::byte* at, std::size_t bytes, const Call& call) {
    for (std::size_t done = 0; done + sizeof(FunctionFigures) <= bytes;) {
        auto& function = *reinterpret_cast<FunctionFigures*>(const_cast<std::byte*>(at + done));
        const std::size_t fixed =
            sizeof function + std::size_t{function.line_count} * sizeof(LineFigure) + function.label_bytes;
        if (function.bytes < fixed || function.bytes > bytes - done) {  // zeros, up to the next piece
            done += kPiece - done % kPiece;
            continue;
        }
        call(function);
        done += function.bytes;
    }
}

template <typename Call>
void FigureRoom::each_in(std::string_view contents, const Call& call) {
    each_of(reinterpret_cast<const std::byte*>(contents.data()), contents.size(),
            [&](const FunctionFigures& f) { call(f); });
}

}  // namespace hiwater::lines
