// Accounts of mappings: which pieces of address space are mapped, and for which stacks they count. Callers hold the
// recorder's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "accounting/accounts.h"
#include "mappings/mappings.h"
#include "mappings/ranges.h"
#include "mappings/shared_pages.h"
#include "stacks/call_tree.h"

namespace hiwater {

// The label of what a library mapped itself is this and the library's name.
inline constexpr std::string_view kMappedBy = "mapped by ";

class MappingAccounts {
public:
    MappingAccounts(Accounts& accounts, CallTree& tree) noexcept : accounts_(accounts), tree_(tree) {}

    // A new mapping of a stack. What was mapped there is gone, whoever mapped it. All of these may throw NoRoom or
    // bad_alloc.
    void map(std::uintptr_t start, std::size_t bytes, std::uint32_t node, const NewMapping& mapping);
    void map_arena(std::uintptr_t start, std::size_t bytes, std::uint32_t node);
    void forget(std::uintptr_t start, std::uintptr_t end);
    // Takes a range out and remembers its pieces; put_back() restores them.
    void take(std::uintptr_t start, std::uintptr_t end, TakenRange* undo);
    void put_back(const TakenRange& undo);
    // A range that was taken out is now elsewhere. It keeps its kind and label, and belongs to the stack that moved it.
    void move(const TakenRange& taken, std::uintptr_t start, std::size_t bytes, std::uint32_t node);
    // Moves the pieces of a range between "reserved" and "mapping" or "shared" as their protection opens and closes.
    void protect(std::uintptr_t start, std::uintptr_t end, std::uint32_t protection, std::uint32_t node);

    void add_made_object(const SharedObject& object) { made_objects_.add(object); }
    const Mappings& pieces() const noexcept { return mappings_; }
    void reset() noexcept;

    // Calls add(account, bytes, blocks) for everything that counts now.
    template <typename Add>
    void each_counted(const Add& add) const {
        mappings_.each([&](std::uintptr_t start, std::uintptr_t end, const Piece& piece) {
            if (!shows_pages(piece)) add(piece.account, end - start, 1);
        });
        shared_pages_.each(
            [&](SharedPlace start, SharedPlace end, std::uint32_t account) { add(account, (end - start) * kPage, 1); });
    }

private:
    enum class Gain { allocated, restored };

    std::uint32_t labelled_as(std::uint32_t account, std::uint32_t below);
    std::uint32_t label_node(std::uint32_t node, const char* label);
    Piece piece_of(std::uintptr_t start, std::size_t bytes, std::uint32_t node, const NewMapping& mapping);
    void add(std::uintptr_t start, const Piece& piece, Gain gain);
    void debit(std::uintptr_t from, std::uintptr_t to, const Piece& piece, int pieces_left);
    void change_shared(std::uint32_t account, std::int64_t pages, std::int64_t runs, Gain gain);
    bool shows_pages(const Piece& piece) const;

    Accounts& accounts_;
    CallTree& tree_;
    Mappings mappings_;
    MadeObjects made_objects_;
    SharedPages shared_pages_;
    PageVector<TakenRange::Part> parts_;  // of the range being changed
};

}  // namespace hiwater
