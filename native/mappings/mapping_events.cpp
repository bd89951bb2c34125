// What the hooks tell of mappings.
#include <cstdint>

#include "session/recorder.h"
#include "stacks/current_stack.h"

namespace hiwater {

using capture::Kind;

std::uint32_t Recorder::label_node(std::uint32_t node, const char* label) {
    return label == nullptr ? node : tree_.child(node, tree_.code("[mapping]", label, 0, capture::CodeKind::label), 0);
}

// Whether a piece shows pages that count once, however many mappings show them.
bool Recorder::shows_pages(const Piece& piece) const {
    return piece.place != 0 && accounts_.record(piece.account).kind == static_cast<std::uint16_t>(Kind::shared);
}

// Under the lock: runs of shared pages begin or cease to count. `pages` is 0 where one run became two, or two one.
void Recorder::change_shared(std::uint32_t account, std::int64_t pages, std::int64_t runs, Gain gain) {
    const std::int64_t bytes = pages * static_cast<std::int64_t>(kPage);
    if (pages <= 0) {
        accounts_.debit(account, -bytes, -runs);
    } else if (gain == Gain::allocated) {
        accounts_.credit(account, bytes, runs);
    } else {
        accounts_.restore(account, bytes, runs);
    }
}

// Under the lock: [start, piece.end), which is free, is mapped now.
void Recorder::add_piece(std::uintptr_t start, const Piece& piece, Gain gain) {
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

void Recorder::debit_piece(std::uintptr_t from, std::uintptr_t to, const Piece& piece, int pieces_left) {
    if (!shows_pages(piece)) return accounts_.debit(piece.account, static_cast<std::int64_t>(to - from), 1 - pieces_left);
    const auto change = [this](std::uint32_t account, std::int64_t pages, std::int64_t runs) {
        change_shared(account, pages, runs, Gain::restored);
    };
    shared_pages_.unmap(piece.place, piece.place + (to - from) / kPage, change);
}

// Under the lock: nothing is mapped there any more, whoever mapped it.
void Recorder::forget_range(std::uintptr_t start, std::uintptr_t end) {
    mappings_.take(start, end, [this](auto from, auto to, const Piece& piece, int left) { debit_piece(from, to, piece, left); });
}

// Under the lock: a new mapping as a piece. Shared memory counts where this process made it, from when it can be used.
Piece Recorder::piece_of(std::uintptr_t start, std::size_t bytes, std::uint32_t node, const NewMapping& mapping) {
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

void Recorder::on_shared_object(const SharedObject& object) noexcept {
    if (is_inside() || !is_on()) return;
    guarded([&] {
        Hold hold(lock_, ticket());
        if (is_on()) made_objects_.add(object);
    });
}

void Recorder::on_map(std::uintptr_t start, std::size_t bytes, const NewMapping& mapping) noexcept {
    if (is_inside() || bytes == 0) return;
    if (!is_on()) return lose_event();
    guarded([&] {
        at_stack([&](Thread& t) {
            // What was mapped there is gone now, whoever mapped it.
            forget_range(start, start + bytes);
            if (!is_internal(t)) add_piece(start, piece_of(start, bytes, t.top->node, mapping), Gain::allocated);
        });
    });
}

void Recorder::take_range(std::uintptr_t start, std::size_t bytes, TakenRange* undo) noexcept {
    undo->count = 0;
    if (is_inside() || bytes == 0) return;
    guarded([&] {
        Hold hold(lock_, ticket());
        if (!is_on()) return;
        undo->session = session_;
        mappings_.take(start, start + bytes, [&](auto from, auto to, const Piece& piece, int left) {
            debit_piece(from, to, piece, left);
            if (undo->count < TakenRange::kMost) undo->part[undo->count++] = {from, to, piece};
        });
    });
}

void Recorder::put_back_range(const TakenRange& undo) noexcept {
    if (undo.count == 0 || is_inside()) return;
    guarded([&] {
        Hold hold(lock_, ticket());
        if (!is_on() || undo.session != session_) return;
        for (int i = 0; i < undo.count; ++i) {
            Piece piece = undo.part[i].piece;
            piece.end = undo.part[i].end;
            add_piece(undo.part[i].start, piece, Gain::restored);
        }
    });
}

void Recorder::find_range(std::uintptr_t start, TakenRange* found) noexcept {
    found->count = 0;
    if (is_inside()) return;
    BusyGuard busy;
    Hold hold(lock_, ticket());
    if (!is_on()) return;
    const Piece piece = mappings_.piece_at(start);
    if (piece.account == 0) return;
    found->session = session_;
    found->part[found->count++] = {start, piece.end, piece};
}

void Recorder::on_arena(std::uintptr_t start, std::size_t bytes) noexcept {
    if (is_inside()) return;
    guarded([&] {
        at_stack([&](Thread& t) {
            const std::uint32_t account = accounts_.account(t.root, Kind::slack);
            forget_range(start, start + bytes);
            add_piece(start, {start + bytes, account, 1}, Gain::allocated);
        });
    });
}

std::uintptr_t Recorder::range_end(std::uintptr_t start) noexcept {
    if (is_inside()) return 0;
    BusyGuard busy;
    Hold hold(lock_, ticket());
    return is_on() ? mappings_.end_of(start) : 0;
}

// Under the lock: a node below another with the label that an account's own node has, if it has one.
std::uint32_t Recorder::labelled_as(std::uint32_t account, std::uint32_t below) {
    const std::uint32_t code = tree_.node(accounts_.record(account).node).code;
    const bool is_label = tree_.code_record(code).kind == static_cast<std::uint32_t>(capture::CodeKind::label);
    return is_label ? tree_.child(below, code, 0) : below;
}

// mremap: the range keeps its kind and label; it belongs from now on to the stack that resized it, as realloc does.
void Recorder::on_moved(const TakenRange& taken, std::uintptr_t start, std::size_t bytes) noexcept {
    if (taken.count == 0 || is_inside()) return;
    const Piece& piece = taken.part[0].piece;
    guarded([&] {
        at_stack([&](Thread& t) {
            if (taken.session != session_) return;
            forget_range(start, start + bytes);
            if (is_internal(t)) return;
            const auto kind = static_cast<Kind>(accounts_.record(piece.account).kind);
            const std::uint32_t account = accounts_.account(labelled_as(piece.account, t.top->node), kind);
            add_piece(start, {start + bytes, account, piece.protection, piece.place}, Gain::allocated);
        });
    });
}

// Under the lock: moves the pieces of a range between "reserved" and "mapping" or "shared" as their protection opens and closes.
void Recorder::change_range(std::uintptr_t start, std::uintptr_t end, std::uint32_t protection) {
    parts_.resize(0);
    mappings_.take(start, end, [&](auto from, auto to, const Piece& piece, int left) {
        debit_piece(from, to, piece, left);
        parts_.push_back({from, to, piece});
    });
    const Thread* t = tls.thread;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        const TakenRange::Part& part = parts_[i];
        const auto kind = static_cast<Kind>(accounts_.record(part.piece.account).kind);
        const bool opens = kind == Kind::reserved && protection != 0;
        const bool closes = (kind == Kind::mapping || kind == Kind::shared) && protection == 0;
        const Kind opened = part.piece.place != 0 ? Kind::shared : Kind::mapping;
        std::uint32_t account = part.piece.account;
        if (opens && t != nullptr) account = accounts_.account(labelled_as(part.piece.account, t->top->node), opened);
        if (closes) account = accounts_.account(accounts_.record(account).node, Kind::reserved);
        add_piece(part.start, {part.end, account, protection, part.piece.place},
                  opens || closes ? Gain::allocated : Gain::restored);
    }
}

void Recorder::on_protect(std::uintptr_t start, std::size_t bytes, std::uint32_t protection) noexcept {
    if (is_inside() || bytes == 0 || !is_on()) return;
    guarded([&] {
        at_stack([&](Thread& t) {
            if (!is_internal(t)) change_range(start, start + bytes, protection);
        });
    });
}

}  // namespace hiwater
