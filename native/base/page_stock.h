// Zeroed pieces of pages, all of one size, that stay for the life of the process. They are cut from mappings that grow
// with what there is: little is reserved for a small program, and for a large one the mappings are few.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/pages.h"
#include "base/raw_calls.h"
#include "base/uncopied.h"

namespace hiwater {

// One thread at a time takes pieces; any other may go over them.
class PageStock : Uncopied {
public:
    // `is_wiped`: the child of a fork has zeros in place of what the parent wrote, so the fork copies nothing.
    explicit PageStock(std::size_t piece_bytes, bool is_wiped = false) noexcept
        : piece_bytes_(piece_bytes), is_wiped_(is_wiped) {}
    ~PageStock() {
        for (const Mapping& mapping : mappings_)
            if (mapping.pieces != 0) unmap_pages(mapping.at, bytes_of(mapping));
    }

    // Null when the kernel refuses.
    void* take() noexcept {
        const std::size_t taken = taken_.load(std::memory_order_relaxed);
        std::size_t before = 0;  // pieces of the mappings that are used up
        for (Mapping& mapping : mappings_) {
            if (mapping.pieces == 0 && !fill(mapping, taken)) return nullptr;
            if (taken < before + mapping.pieces) {
                taken_.store(taken + 1, std::memory_order_release);
                return mapping.at + (taken - before) * piece_bytes_;
            }
            before += mapping.pieces;
        }
        return nullptr;
    }

    // Calls visit(piece) for each that was taken.
    template <typename Visit>
    void each(Visit visit) const {
        std::size_t left = taken_.load(std::memory_order_acquire);
        for (const Mapping* mapping = mappings_; left != 0; ++mapping)
            for (std::size_t i = 0; i < mapping->pieces && left != 0; ++i, --left)
                visit(mapping->at + i * piece_bytes_);
    }
    // All pieces are zero again, and take no memory until they are written to.
    void give_pages_back() noexcept {
        each_mapping([this](const Mapping& mapping) { platform::give_back(mapping.at, bytes_of(mapping)); });
    }
    // Whether the next child of a fork has the pieces as they are here: for a stock that is made with `is_wiped`. The
    // caller holds off who takes pieces.
    void keep_at_fork(bool is_kept) const noexcept {
        const ErrnoKept kept;
        each_mapping([&](const Mapping& mapping) { platform::wipe_on_fork(mapping.at, bytes_of(mapping), !is_kept); });
    }
    std::uint64_t bytes() const noexcept { return taken_.load(std::memory_order_acquire) * piece_bytes_; }

private:
    struct Mapping {
        char* at;
        std::size_t pieces;  // written last: the child of a fork finds it whole or not at all
    };
    static constexpr std::size_t kMost = 256;  // each adds an eighth, so this many are never needed
    static constexpr std::size_t kShare = 8;

    std::size_t bytes_of(const Mapping& mapping) const noexcept { return mapping.pieces * piece_bytes_; }
    // Those that hold pieces.
    template <typename Visit>
    void each_mapping(Visit visit) const {
        std::size_t left = taken_.load(std::memory_order_acquire);
        for (const Mapping* mapping = mappings_; left != 0; ++mapping) {
            visit(*mapping);
            left -= std::min(left, mapping->pieces);
        }
    }
    bool fill(Mapping& mapping, std::size_t taken) noexcept {
        for (std::size_t pieces = std::max<std::size_t>(1, taken / kShare); pieces != 0; pieces /= 2) {
            // Near a limit what is spare is for what is needed.
            const bool is_needed = pieces == 1;
            mapping.at =
                static_cast<char*>(map_pages(pieces * piece_bytes_, is_wiped_ ? Use::wiped : Use::kept, is_needed));
            if (mapping.at == nullptr) continue;
            if (is_wiped_) {
                const ErrnoKept kept;
                platform::wipe_on_fork(mapping.at, pieces * piece_bytes_);
            }
            __atomic_store_n(&mapping.pieces, pieces, __ATOMIC_RELEASE);
            spare_room.refill();  // what was given may be there again
            return true;
        }
        return false;
    }

    const std::size_t piece_bytes_;
    const bool is_wiped_;
    Mapping mappings_[kMost] = {};
    std::atomic<std::size_t> taken_{0};
};

}  // namespace hiwater
