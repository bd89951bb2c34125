// Where a thread stands that waits for another. On the stacks of a library's own threads, such as those of a pool, no
// line is the user's: their memory is charged to a node below the stack, with the line at which the thread stood that
// started this thread, or the main thread. A native thread stands below the line that started it. As one of a pool it
// works for other lines later: for those at which its starter waits then.
#include <algorithm>
#include <string_view>
#include <utility>

#include "session/recorder.h"
#include "stacks/waits.h"

namespace hiwater {

using capture::Owner;

namespace {

constexpr std::uint32_t kMostOthers = 16;
// To ask without the GIL takes some microseconds, so smaller blocks do it once in this time.
constexpr std::size_t kAlwaysAsks = 1 << 20;
constexpr std::uint64_t kAskedNs = 1'000'000;

struct Standing {
    Codes& codes;
    const CallTree& tree;
    Thread& asker;
    WaitedAt own = {}, run = {};  // the innermost line of each

    // Whether the line was found. The frame's thread does not run: the caller has the GIL.
    bool visit(const hw_slot& slot) {
        const void* const object = hw_slot_code(&slot);
        return visit(object == nullptr ? nullptr : codes.position_of(asker, slot, object));
    }
    bool visit(const Codes::Position* at) {
        if (at == nullptr || (at->kind & (Codes::kInternal | Codes::kOwn)) != 0) return false;
        const auto owner = static_cast<Owner>(tree.code_record(at->code).owner);
        if (owner == Owner::own) own = {at->code, at->line};
        if (owner == Owner::run && run.code == 0) run = {at->code, at->line};
        return own.code != 0;
    }
    WaitedAt line() const { return own.code != 0 ? own : run; }
};

}  // namespace

// The line of the user's that a node is below; none where none is.
WaitedAt Recorder::own_line(std::uint32_t node) const {
    WaitedAt run;
    while (node != 0) {
        const capture::NodeRecord& record = tree_.node(node);
        const auto owner = static_cast<Owner>(tree_.code_record(record.code).owner);
        if (owner == Owner::own) return {record.code, record.line};
        if (owner == Owner::run && run.code == 0) run = {record.code, record.line};
        if (record.parent >= node) break;  // somebody else wrote that: it could lead round in a circle
        node = record.parent;
    }
    return run;
}

// Asks the interpreter, with the GIL. False without it.
bool Recorder::find_other(Thread& t, WaitedAt* found) {
    Standing standing{codes_, tree_, t};
    const auto visit = [](const hw_slot* slot, void* at) {
        return static_cast<int>(static_cast<Standing*>(at)->visit(*slot));
    };
    for (const std::uint64_t state : t.starters.states()) {
        if (state == 0 || standing.line().code != 0) break;
        if (hw_frames_of_other(state, visit, &standing) < 0) return false;
    }
    if (standing.line().code == 0 && hw_frames_of_other(0, visit, &standing) < 0) return false;
    *found = standing.line();
    return true;
}

// Where the thread of a state waits. Needs no GIL.
WaitedAt Recorder::line_of_waiting(Thread& t, const hw_state& state) {
    Standing standing{codes_, tree_, t};
    const auto visit = [](const void* code, const void* instr, void* at) {
        Standing& found = *static_cast<Standing*>(at);
        return static_cast<int>(found.visit(found.codes.position_of_waiting(code, instr)));
    };
    hw_frames_of_waiting(state, platform::copy_own, visit, &standing);
    return standing.line();
}

// The line at which other threads than the main thread wait; none where they wait at different ones.
WaitedAt Recorder::only_line_of_waiting(Thread& t) {
    hw_state states[kMostOthers];
    const std::uint32_t count = hw_waiting_states(states, kMostOthers, platform::copy_own);
    WaitedAt only;
    for (std::uint32_t i = 0; i < count; ++i) {
        const WaitedAt line = states[i].id == main_state_.id ? WaitedAt() : line_of_waiting(t, states[i]);
        if (line.code == 0) continue;
        if (only.code != 0 && only != line) return {};
        only = line;
    }
    return only;
}

// Without the GIL: where the starter waits. That may have ended, or have other work, as where threads of a server share
// a native pool: then the line of another thread, and last the main thread's.
WaitedAt Recorder::find_waiting(Thread& t) {
    if (are_calls_filtered()) return {};
    const ErrnoKept kept;
    WaitedAt found = line_of_waiting(t, t.starters.nearest());
    if (found.code == 0 && t.is_below_start()) found = only_line_of_waiting(t);
    return found.code != 0 ? found : line_of_waiting(t, main_state_);
}

// Without the GIL: whether the thread asked a moment ago, which is enough for a block of that size. Needs no lock.
bool Recorder::has_asked(const Thread& t, std::size_t bytes) const noexcept {
    return bytes < kAlwaysAsks && now_ns() - t.asked_ns < kAskedNs;
}

// Whether it waits at another line than was found last, for a block of that size. Under the lock.
bool Recorder::find_wait(Thread& t, std::size_t bytes) {
    WaitedAt found;
    if (!find_other(t, &found)) {
        if (has_asked(t, bytes)) return false;
        t.asked_ns = now_ns();
        found = find_waiting(t);
        if (found.code == 0 && !t.is_below_start()) return false;  // what was found last stays
    }
    if (t.is_below_start() && found == own_line(t.base)) found = {};
    if (found == t.waits_at) return false;
    t.waits_at = found;
    t.wait_code = 0;
    if (found.code == 0) return true;
    const capture::CodeRecord& code = tree_.code_record(found.code);
    char name[256];
    const std::string_view function = tree_.text_of(code.function).substr(0, sizeof name - kWaitedFor.size());
    char* const end =
        std::copy(function.begin(), function.end(), std::copy(kWaitedFor.begin(), kWaitedFor.end(), name));
    t.wait_code = tree_.code({name, static_cast<std::size_t>(end - name)}, tree_.text_of(code.file), code.first_line,
                             capture::CodeKind::wait, Owner::own);
    return true;
}

// A large block, or one on a stack that the thread meets first, is charged to where the thread is waited for now, and
// so is what follows on the stacks that it has met. Under the lock.
void Recorder::renew_wait(Thread& t, std::size_t bytes) {
    const bool has_accounts = std::exchange(t.has_unowned, true);  // that may be for the line before
    if (!find_wait(t, bytes) || !has_accounts) return;
    if (!t.is_below_start() || own_line(t.base).code == 0) {
        t.forget_accounts();
    } else {
        t.no_frames.forget_accounts();  // only what it does outside of Python
    }
    if (t.native != nullptr) t.native->session = t.native->known_below = 0;
}

// The node that the Python stack in t.top is charged to. Under the lock.
std::uint32_t Recorder::python_node(Thread& t) {
    const std::uint32_t node = t.top->node();
    const bool works_for_others = t.is_below_start() && t.top == &t.no_frames;
    if (t.is_main || (!works_for_others && own_line(node).code != 0)) return node;
    renew_wait(t, kAlwaysAsks);
    return t.wait_code == 0 ? node : tree_.child(node, t.wait_code, t.waits_at.line);
}

}  // namespace hiwater
