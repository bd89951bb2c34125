// Mappings as intervals that never overlap. Mapping over, unmapping part of, moving or opening a range cuts what is
// there.
#pragma once

#include <cstdint>
#include <iterator>

#include "base/pages.h"
#include "mappings/shared_pages.h"

namespace hiwater {

struct Piece {
    std::uintptr_t end = 0;
    std::uint32_t account = 0;
    std::uint32_t protection = 0;  // as last given to mmap or mprotect
    SharedPlace place = 0;         // of its first page, where it shows shared memory that this process made
};

class Mappings {
public:
    // Adds [start, end), which must be free. Throws bad_alloc.
    void add(std::uintptr_t start, std::uintptr_t end, std::uint32_t account, std::uint32_t protection,
             SharedPlace place = 0) {
        tree_.emplace(start, Piece{end, account, protection, place});
    }

    // Takes [start, end) out, cutting pieces at the borders. For every piece touched: visit(piece_start, piece_end of
    // the part taken, piece, pieces_left): `piece.place` is that of the part, and pieces_left how many pieces of the
    // old one remain (0, 1 or 2).
    template <typename Visit>
    void take(std::uintptr_t start, std::uintptr_t end, Visit visit) {
        if (end <= start) return;  // a length that goes past the last address, which the kernel is about to refuse
        auto it = tree_.upper_bound(start);
        if (it != tree_.begin() && std::prev(it)->second.end > start) --it;
        while (it != tree_.end() && it->first < end) {
            const std::uintptr_t piece_start = it->first;
            const Piece piece = it->second;
            const std::uintptr_t from = piece_start < start ? start : piece_start;
            const std::uintptr_t to = piece.end > end ? end : piece.end;
            int left = 0;
            if (piece.end > end) {
                tree_.emplace(end, part_of(piece, piece_start, end));
                ++left;
            }
            if (piece_start < start) {
                it->second.end = start;
                ++left;
                ++it;
            } else {
                it = tree_.erase(it);
            }
            visit(from, to, part_of(piece, piece_start, from), left);
        }
    }

    // The end of the piece that starts at an address, or 0.
    std::uintptr_t end_of(std::uintptr_t start) const {
        const auto it = tree_.find(start);
        return it == tree_.end() ? 0 : it->second.end;
    }

    // What lies from an address on, of the piece that it is in. With account 0 where it is in none.
    Piece piece_at(std::uintptr_t address) const {
        const auto it = tree_.upper_bound(address);
        if (it == tree_.begin()) return {};
        const auto& [start, piece] = *std::prev(it);
        return address < piece.end ? part_of(piece, start, address) : Piece{};
    }

    template <typename Visit>
    void each(Visit visit) const {
        for (const auto& [start, piece] : tree_) visit(start, piece.end, piece);
    }

    std::size_t size() const { return tree_.size(); }

    void reset() noexcept {
        tree_.clear();
        pool_.reset();
    }

    // O(n). Pieces are not empty and do not overlap.
    bool is_consistent() const {
        std::uintptr_t last = 0;
        for (const auto& [start, piece] : tree_) {
            if (start < last || piece.end <= start) return false;
            last = piece.end;
        }
        return true;
    }

private:
    static Piece part_of(const Piece& piece, std::uintptr_t start, std::uintptr_t from) {
        Piece part = piece;
        if (part.place != 0) part.place += (from - start) / kPage;
        return part;
    }

    PiecePool pool_;
    PieceMap<std::uintptr_t, Piece> tree_{&pool_};
};

}  // namespace hiwater
