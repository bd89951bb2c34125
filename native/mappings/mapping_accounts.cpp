#include "mappings/mapping_accounts.h"

namespace hiwater {

using capture::Kind;

std::uint32_t MappingAccounts::label_node(std::uint32_t node, const char* label) {
    return label == nullptr ? node : tree_.child(node, tree_.code("[mapping]", label, 0, capture::CodeKind::label), 0);
}

// A node below another with the label that an account's own node has, if it has one.
std::uint32_t MappingAccounts::labelled_as(std::uint32_t account, std::uint32_t below) {
    const std::uint32_t code = tree_.node(accounts_.record(account).node).code;
    const bool is_label = tree_.code_record(code).kind == static_cast<std::uint32_t>(capture::CodeKind::label);
    return is_label ? tree_.child(below, code, 0) : below;
}

// Whether a piece shows pages that count once, however many mappings show them.
bool MappingAccounts::shows_pages(const Piece& piece) const {
    return piece.place != 0 && accounts_.record(piece.account).kind == static_cast<std::uint16_t>(Kind::shared);
}

// Runs of shared pages begin or cease to count. `pages` is 0 where one run became two, or two one.
void MappingAccounts::change_shared(std::uint32_t account, std::int64_t pages, std::int64_t runs, Gain gain) {
    const std::int64_t bytes = pages * static_cast<std::int64_t>(kPage);
    if (pages <= 0) {
        accounts_.debit(account, -bytes, -runs);
    } else if (gain == Gain::allocated) {
        accounts_.credit(account, bytes, runs);
    } else {
        accounts_.restore(account, bytes, runs);
    }
}

// [start, piece.end), which is free, is mapped now.
void MappingAccounts::add(std::uintptr_t start, const Piece& piece, Gain gain) {
    mappings_.add(start, piece.end, piece.account, piece.protection, piece.place);
    const std::uintptr_t bytes = piece.end - start;
    if (shows_pages(piece)) {
        const auto change = [&](std::uint32_t account, std::int64_t pages, std::int64_t runs) {
            change_shared(account, pages, runs, gain);
        };
        shared_pages_.map(piece.place, piece.place + bytes / kPage, piece.account, change);
    } else if (gain == Gain::allocated) {
        accounts_.credit(piece.account, static_cast<std::int64_t>(bytes));
    } else {
        accounts_.restore(piece.account, static_cast<std::int64_t>(bytes));
    }
}

void MappingAccounts::debit(std::uintptr_t from, std::uintptr_t to, const Piece& piece, int pieces_left) {
    if (!shows_pages(piece))
        return accounts_.debit(piece.account, static_cast<std::int64_t>(to - from), 1 - pieces_left);
    const auto change = [this](std::uint32_t account, std::int64_t pages, std::int64_t runs) {
        change_shared(account, pages, runs, Gain::restored);
    };
    shared_pages_.unmap(piece.place, piece.place + (to - from) / kPage, change);
}

// Shared memory counts where this process made it, from the moment it can be used.
Piece MappingAccounts::piece_of(std::uintptr_t start, std::size_t bytes, std::uint32_t node,
                                const NewMapping& mapping) {
    Kind kind = mapping.kind;
    SharedPlace place = 0;
    if (kind == Kind::shared || kind == Kind::attached) {
        const bool made = kind == Kind::shared;
        const std::uint32_t object = !made                       ? made_objects_.find(mapping.object)
                                     : mapping.object.is_named() ? made_objects_.add(mapping.object)
                                                                 : made_objects_.add_unnamed();
        const bool has_place = object != 0 && mapping.first_page < kSharedPages - bytes / kPage;
        if (has_place) place = shared_place(object, mapping.first_page);
        kind = !has_place ? Kind::attached : mapping.protection == 0 ? Kind::reserved : Kind::shared;
    }
    return {start + bytes, accounts_.account(label_node(node, mapping.label), kind), mapping.protection, place};
}

void MappingAccounts::forget(std::uintptr_t start, std::uintptr_t end) {
    mappings_.take(start, end,
                   [this](auto from, auto to, const Piece& piece, int left) { debit(from, to, piece, left); });
}

void MappingAccounts::map(std::uintptr_t start, std::size_t bytes, std::uint32_t node, const NewMapping& mapping) {
    add(start, piece_of(start, bytes, node, mapping), Gain::allocated);
}

void MappingAccounts::map_arena(std::uintptr_t start, std::size_t bytes, std::uint32_t node) {
    const std::uint32_t account = accounts_.account(node, Kind::slack);
    forget(start, start + bytes);
    add(start, {start + bytes, account, 1}, Gain::allocated);
}

void MappingAccounts::take(std::uintptr_t start, std::uintptr_t end, TakenRange* undo) {
    mappings_.take(start, end, [&](auto from, auto to, const Piece& piece, int left) {
        debit(from, to, piece, left);
        if (undo->count < TakenRange::kMost) undo->part[undo->count++] = {from, to, piece};
    });
}

void MappingAccounts::put_back(const TakenRange& undo) {
    for (int i = 0; i < undo.count; ++i) {
        Piece piece = undo.part[i].piece;
        piece.end = undo.part[i].end;
        add(undo.part[i].start, piece, Gain::restored);
    }
}

void MappingAccounts::move(const TakenRange& taken, std::uintptr_t start, std::size_t bytes, std::uint32_t node) {
    const Piece& piece = taken.part[0].piece;
    const auto kind = static_cast<Kind>(accounts_.record(piece.account).kind);
    const std::uint32_t account = accounts_.account(labelled_as(piece.account, node), kind);
    add(start, {start + bytes, account, piece.protection, piece.place}, Gain::allocated);
}

void MappingAccounts::protect(std::uintptr_t start, std::uintptr_t end, std::uint32_t protection, std::uint32_t node) {
    parts_.resize(0);
    mappings_.take(start, end, [&](auto from, auto to, const Piece& piece, int left) {
        debit(from, to, piece, left);
        parts_.push_back({from, to, piece});
    });
    for (const TakenRange::Part& part : parts_) {
        const auto kind = static_cast<Kind>(accounts_.record(part.piece.account).kind);
        const bool opens = kind == Kind::reserved && protection != 0;
        const bool closes = (kind == Kind::mapping || kind == Kind::shared) && protection == 0;
        const Kind opened = part.piece.place != 0 ? Kind::shared : Kind::mapping;
        std::uint32_t account = part.piece.account;
        if (opens) account = accounts_.account(labelled_as(account, node), opened);
        if (closes) account = accounts_.account(accounts_.record(account).node, Kind::reserved);
        add(part.start, {part.end, account, protection, part.piece.place},
            opens || closes ? Gain::allocated : Gain::restored);
    }
}

void MappingAccounts::reset() noexcept {
    mappings_.reset();
    made_objects_.reset();
    shared_pages_.reset();
}

}  // namespace hiwater
