// Where a thread stands that waits for another. On the stacks of a library's own threads, such as those of a pool, no
// line is the user's: their memory is charged to a node below the stack, with the line at which the thread stood that
// started this thread, or the main thread.
#include <algorithm>
#include <string_view>

#include "session/recorder.h"
#include "stacks/waits.h"

namespace hiwater {

using capture::Owner;

namespace {

constexpr int kMostStarters = 4;

struct Standing {
    Codes& codes;
    const CallTree& tree;
    Thread& asker;
    WaitedAt own = {}, run = {};  // the innermost line of each

    // Whether the line was found. The frame's thread does not run: the caller has the GIL.
    bool visit(const hw_slot& slot) {
        const void* const object = hw_slot_code(&slot);
        const Codes::Position* const at = object == nullptr ? nullptr : codes.position_of(asker, slot, object);
        if (at == nullptr || (at->kind & (Codes::kInternal | Codes::kOwn)) != 0) return false;
        const auto owner = static_cast<Owner>(tree.code_record(at->code).owner);
        if (owner == Owner::own) own = {at->code, at->line};
        if (owner == Owner::run && run.code == 0) run = {at->code, at->line};
        return own.code != 0;
    }
    WaitedAt line() const { return own.code != 0 ? own : run; }
};

}  // namespace

bool Recorder::is_owned(std::uint32_t node) const {
    while (node != 0) {
        const capture::NodeRecord& record = tree_.node(node);
        const auto owner = static_cast<Owner>(tree_.code_record(record.code).owner);
        if (owner == Owner::own || owner == Owner::run) return true;
        if (record.parent >= node) return false;  // somebody else wrote that: it could lead round in a circle
        node = record.parent;
    }
    return false;
}

// The state of the thread that started another one; 0 where that is not known. Under the lock.
std::uint64_t Recorder::starter_of(ThreadId id) {
    UninterruptedHold hold(pool_lock_);
    for (const Thread* t = all_; t != nullptr; t = t->next_of_all)
        if (t->id == id) return t->starter;
    return 0;
}

// Only where the thread has the GIL: else what it found last stays. Under the lock.
bool Recorder::find_wait(Thread& t) {
    Standing standing{codes_, tree_, t};
    const auto visit = [](const hw_slot* slot, void* at) {
        return static_cast<int>(static_cast<Standing*>(at)->visit(*slot));
    };
    unsigned long thread = 0;
    std::uint64_t state = t.starter;
    for (int i = 0; i < kMostStarters && state != 0 && standing.line().code == 0;
         ++i, state = thread == 0 ? 0 : starter_of(thread))
        if (hw_frames_of_other(state, visit, &standing, &thread) < 0) return false;
    if (standing.line().code == 0 && hw_frames_of_other(0, visit, &standing, &thread) < 0) return false;
    const WaitedAt found = standing.line();
    if (found.code == t.waits_at.code && found.line == t.waits_at.line) return false;
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

// A large block is charged to where the thread is waited for now, and so is what follows on the stacks that it has met.
// Under the lock.
void Recorder::renew_wait(Thread& t) {
    if (!find_wait(t)) return;
    for (Thread::Edge& edge : t.edges) edge.forget_accounts();
    t.no_frames.forget_accounts();
    if (t.native != nullptr) t.native->session = t.native->known_below = 0;
}

// The node that the Python stack in t.top is charged to. Under the lock.
std::uint32_t Recorder::python_node(Thread& t) {
    const std::uint32_t node = t.top->node();
    if (t.is_main || is_owned(node)) return node;
    t.has_unowned = true;
    find_wait(t);
    return t.wait_code == 0 ? node : tree_.child(node, t.wait_code, t.waits_at.line);
}

}  // namespace hiwater
