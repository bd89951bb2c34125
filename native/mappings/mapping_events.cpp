// Events of mappings: each finds the stack and then changes the accounts of mappings under the lock.
#include <cstdint>

#include "session/recorder.h"
#include "stacks/current_stack.h"

namespace hiwater {

void Recorder::on_shared_object(const SharedObject& object) noexcept {
    if (is_inside() || !is_on()) return;
    guarded([&] {
        Hold hold(lock_, ticket());
        if (is_on()) mappings_.add_made_object(object);
    });
}

void Recorder::on_map(std::uintptr_t start, std::size_t bytes, const NewMapping& mapping) noexcept {
    if (is_inside() || bytes == 0) return;
    if (!is_on()) return lose_event();
    if (bytes >= kLargeChange && capture::is_counted(mapping.kind)) before_rise(bytes);
    at_stack_guarded([&](Thread& t) {
        mappings_.forget(start, start + bytes);  // gone now, whoever mapped it
        if (!t.top->is_internal()) mappings_.map(start, bytes, charged_node(t), mapping);
    });
}

void Recorder::take_range(std::uintptr_t start, std::size_t bytes, TakenRange* undo) noexcept {
    undo->count = 0;
    if (is_inside() || bytes == 0) return;
    guarded([&] {
        Hold hold(lock_, ticket());
        if (!is_on()) return;
        undo->session = session_;
        mappings_.take(start, start + bytes, undo);
    });
}

void Recorder::put_back_range(const TakenRange& undo) noexcept {
    if (undo.count == 0 || is_inside()) return;
    guarded([&] {
        Hold hold(lock_, ticket());
        if (is_on() && undo.session == session_) mappings_.put_back(undo);
    });
}

void Recorder::find_range(std::uintptr_t start, TakenRange* found) noexcept {
    found->count = 0;
    if (is_inside()) return;
    BusyGuard busy;
    Hold hold(lock_, ticket());
    if (!is_on()) return;
    const Piece piece = mappings_.pieces().piece_at(start);
    if (piece.account == 0) return;
    found->session = session_;
    found->part[found->count++] = {start, piece.end, piece};
}

void Recorder::on_arena(std::uintptr_t start, std::size_t bytes) noexcept {
    if (is_inside()) return;
    at_stack_guarded([&](Thread& t) { mappings_.map_arena(start, bytes, t.root); });
}

std::uintptr_t Recorder::range_end(std::uintptr_t start) noexcept {
    if (is_inside()) return 0;
    BusyGuard busy;
    Hold hold(lock_, ticket());
    return is_on() ? mappings_.pieces().end_of(start) : 0;
}

void Recorder::on_moved(const TakenRange& taken, std::uintptr_t start, std::size_t bytes) noexcept {
    if (taken.count == 0 || is_inside()) return;
    at_stack_guarded([&](Thread& t) {
        if (taken.session != session_) return;
        mappings_.forget(start, start + bytes);
        if (!t.top->is_internal()) mappings_.move(taken, start, bytes, charged_node(t));
    });
}

void Recorder::on_protect(std::uintptr_t start, std::size_t bytes, std::uint32_t protection) noexcept {
    if (is_inside() || bytes == 0 || !is_on()) return;
    at_stack_guarded([&](Thread& t) {
        if (!t.top->is_internal()) mappings_.protect(start, start + bytes, protection, charged_node(t));
    });
}

}  // namespace hiwater
