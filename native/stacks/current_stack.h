// Finds the stack of an event, and runs the event's work under the lock: the templates of Recorder that events of
// blocks and mappings use.
#pragma once

#include <cstdint>

#include "session/recorder.h"

namespace hiwater {

// Sets t.top to the current stack. A caller of Python's allocators (`kind`) holds the GIL. Calls move(changed) where
// the stack has frames that this thread has not met lately.
template <typename Move>
bool Recorder::find_top(Thread& t, const Move& move, capture::Kind kind) {
    if (only_counters_) [[unlikely]]
        return true;
    const void* instr = nullptr;
    const bool has_gil = kind == capture::Kind::python;
    if (has_gil) hw_frames_see_attached(&t.memo);
    if (!(has_gil ? hw_frames_are_settled_with_gil(&t.memo, &instr) : hw_frames_are_settled(&t.memo, &instr)))
        return find_changed_top(t, hw_frames_refresh(&t.memo, grow_memo), move);
    return t.stand_at(instr) || find_changed_top(t, hw_frames_move_top(&t.memo, instr), move);
}

// The same where the walk found the slots from `changed` up new or changed.
template <typename Move>
[[gnu::always_inline]] inline bool Recorder::find_changed_top(Thread& t, hw_slot* changed, const Move& move) {
    if (t.memo.depth == 0) {
        t.top = &t.no_frames;
        return true;
    }
    hw_slot* const known = t.stand_from(changed, [](const hw_slot&, std::uint64_t, Thread::Edge*) { return false; });
    return known == t.memo.slots + t.memo.depth || move(known);
}

// Runs work(thread) under the lock, with the current stack in thread.top. Returns whether it did: not where nothing is
// recorded any more, or the thread has given its state back. `was_behind` is set where attention was requested. Inside
// guarded().
template <typename Work>
bool Recorder::at_stack(const Work& work, bool* was_behind, capture::Kind kind) {
    Thread* t = mine();
    if (t == nullptr) return false;
    // A known stack is found before the lock is taken, because other threads may wait for it.
    hw_slot* changed = nullptr;
    bool is_found = false, has_looked = is_up_to_date(*t);
    if (has_looked) is_found = find_top(*t, [&](hw_slot* from) { return changed = from, false; }, kind);
    bool behind = false;  // the recording moved on since this thread's last event: a new one, or a code object died
    {
        Hold hold(lock_, &t->ticket);
        if (!is_on()) return false;
        behind = !is_up_to_date(*t);
        if (behind) sync(*t);
        if (behind || !has_looked) is_found = find_top(*t, [&](hw_slot* from) { return changed = from, false; }, kind);
        if (!is_found) move_top(*t, changed);
        work(*t);
    }
    if (was_behind != nullptr) *was_behind = behind;
    return true;
}

template <typename Work>
void Recorder::at_stack_guarded(const Work& work) noexcept {
    guarded([&] { at_stack(work); });
}

}  // namespace hiwater
