#include "lines/figure_room.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <new>

#include "base/own_file.h"
#include "base/pages.h"
#include "base/raw_calls.h"

namespace hiwater::lines {

void FunctionFigures::clear() noexcept {
    std::fill(lines().begin(), lines().end(), LineFigure{});
    calls = 0;
    resident_first_bytes = 0;
}

FigureRoom::~FigureRoom() {
    for (const Piece& piece : pieces_) unmap_pages(piece.at, piece.bytes);
}

FunctionFigures& FigureRoom::add(std::int32_t first_line, std::int32_t last_line, std::string_view label) {
    const auto count = static_cast<std::uint32_t>(last_line - first_line + 1);
    const std::size_t wanted =
        round_up(sizeof(FunctionFigures) + count * sizeof(LineFigure) + label.size(), alignof(FunctionFigures));
    if (pieces_.empty() || pieces_.back().bytes - pieces_.back().used < wanted) {
        std::size_t offset = 0;
        for (const Piece& piece : pieces_) offset += piece.bytes;
        pieces_.reserve(pieces_.size() + 1);
        const std::size_t bytes = round_up(wanted, kPiece);
        auto* const at = static_cast<std::byte*>(map_pages(bytes));
        if (at == nullptr) throw std::bad_alloc();
        pieces_.push_back({at, bytes, 0});
        const int fd = path_.empty() ? -1 : open_high(path_.c_str(), O_RDWR | O_NOFOLLOW);
        put_into_file(fd, pieces_.back(), offset);
        if (fd >= 0) raw::close(fd);
    }
    Piece& piece = pieces_.back();
    auto& added = *::new (piece.at + piece.used) FunctionFigures();
    added.first_line = first_line;
    added.line_count = count;
    added.label_bytes = static_cast<std::uint32_t>(label.size());
    added.clear();
    std::copy(label.begin(), label.end(), reinterpret_cast<char*>(added.lines().data() + count));
    added.bytes = static_cast<std::uint32_t>(wanted);
    piece.used += wanted;
    return added;
}

int FigureRoom::move_to(const char* path) {
    std::string name = path;
    const int fd = open_high(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    if (fd < 0) return errno;
    std::size_t offset = 0;
    int error = 0;
    for (const Piece& piece : pieces_) {
        if (!put_into_file(fd, piece, offset)) error = errno;
        each_of(piece.at, piece.used, [](FunctionFigures& function) { function.clear(); });
        offset += piece.bytes;
    }
    raw::close(fd);
    path_.swap(name);
    return error;
}

// At the same address. Its room is allocated: a write to a page that finds none on the disk would end the process.
bool FigureRoom::put_into_file(int fd, const Piece& piece, std::size_t offset) noexcept {
    if (fd < 0) return false;
    const auto at = static_cast<off_t>(offset);
    errno = ::posix_fallocate(fd, at, static_cast<off_t>(piece.bytes));
    if (errno != 0 || raw::pwrite(fd, piece.at, piece.used, at) != static_cast<ssize_t>(piece.used)) return false;
    return raw::mmap(piece.at, piece.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, at) != MAP_FAILED;
}

}  // namespace hiwater::lines
