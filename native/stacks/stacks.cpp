// Which stack an event belongs to: the calling thread's frames, interned.
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include <new>

#include "base/process.h"
#include "base/raw_calls.h"
#include "session/fatal_signals.h"
#include "session/recorder.h"
#include "session/sampler.h"

namespace hiwater {

using capture::Kind;

std::atomic<std::uint32_t> g_code_generation[kCodePages] = {};
SampleStreams g_no_streams = {}, g_own_streams = {};
HIWATER_STATIC_TLS constinit thread_local ThreadLocal tls;

namespace {

constexpr std::uint32_t kFirstCapacity = 128;

}  // namespace

int Recorder::grow_memo(hw_memo* memo, std::uint32_t capacity) {
    std::uint32_t wanted = memo->capacity == 0 ? kFirstCapacity : memo->capacity;
    while (wanted < capacity) wanted *= 2;
    auto* slots = static_cast<hw_slot*>(map_pages(round_up(wanted * sizeof(hw_slot), kPage)));
    if (slots == nullptr) return 0;
    if (memo->slots != nullptr) {
        ::memcpy(slots, memo->slots, memo->capacity * sizeof(hw_slot));
        unmap_pages(memo->slots, round_up(memo->capacity * sizeof(hw_slot), kPage));
    }
    memo->slots = slots;
    memo->capacity = wanted;
    return 1;
}

namespace {

bool is_dying(const void* code) noexcept {
    for (const DyingCode* d = tls.dying; d != nullptr; d = d->outer)
        if (d->code == code) return true;
    return false;
}

}  // namespace

// --- threads

// Whole pages go back to the kernel: to write them would cost the child of a fork a copy of each.
void Thread::forget_edges() noexcept {
    if (filled_parts != 0) zero_pages(edges, sizeof edges);
    filled_parts = 0;
}

void Thread::forget_accounts() noexcept {
    each_filled_part([](std::span<Edge> part) {
        for (Edge& edge : part) edge.forget_accounts();
    });
    no_frames.forget_accounts();
}

// Pages that are there are written: to give them back would stop the process's other threads for a moment.
void Thread::clear() noexcept {
    const hw_memo kept_memo = memo;
    Thread* const kept_next = next_of_all;
    NativeStack* const kept_native = native;
    const ThreadSeries ended = series;
    each_filled_part([](std::span<Edge> part) { ::memset(static_cast<void*>(part.data()), 0, part.size_bytes()); });
    ticket.may_share.store(false, std::memory_order_relaxed);
    constexpr std::size_t kFirst = offsetof(Thread, random);
    ::memset(static_cast<void*>(&random), 0, offsetof(Thread, edges) - kFirst);
    next_of_all = kept_next;
    ended_series = ended;
    native = kept_native;
    if (native != nullptr) native->frames.forget(), native->frames.stack = {};
    memo = kept_memo;
    memo.thread = 0;
    memo.state = nullptr;
}

void Recorder::give_thread_back(void* thread) noexcept {
    auto* t = static_cast<Thread*>(thread);
    Recorder& self = recorder();
    if (t->ticket.active.load(std::memory_order_relaxed) != 0)
        self.abandon(t);  // a signal handler ended the thread during an event
    BusyGuard busy;
    tls.exit_node = t->base;
    tls.exit_session = t->session;
    tls.exiting = true;
    tls.thread = nullptr;
    tls.renew_ready();
    fatal_signals::take_stack_back();
    if (t->ticket.may_share.load(std::memory_order_relaxed)) {
        Hold all(self.lock_);  // merges its thread-local accounts before another thread gets its memory
    }
    UninterruptedHold hold(self.pool_lock_);
    t->id = 0;
    self.keep_counts_of(*t);
    t->next = self.pool_;
    self.pool_ = t;
}

// Under the pool's lock: fresh pages, or those of a thread that has ended.
Thread* Recorder::take_thread() noexcept {
    Thread* t = pool_;
    if (t == nullptr) {
        t = static_cast<Thread*>(map_apart(sizeof(Thread), this));
        if (t == nullptr) return nullptr;
        t->next_of_all = all_;
        all_ = t;
        return t;
    }
    pool_ = t->next;
    t->clear();
    return t;
}

Thread* Recorder::make_thread() noexcept {
    if (tls.exiting) return nullptr;
    fatal_signals::give_stack();
    static pthread_key_t key = [] {
        pthread_key_t made{};
        ::pthread_key_create(&made, &Recorder::give_thread_back);
        return made;
    }();
    UninterruptedHold hold(pool_lock_);
    Thread* t = take_thread();
    if (t == nullptr) return nullptr;
    t->top = &t->no_frames;
    t->begin_edges(process::is_main_thread());
    t->epoch = Thread::kNoEpoch;
    hw_frames_forget(&t->memo);
    // May allocate for a late key; we are busy, so that is not recorded.
    if (::pthread_setspecific(key, t) != 0) {
        t->next = pool_;
        pool_ = t;
        return nullptr;
    }
    t->id = own_thread_id();
    names_.take_noted(*t);
    tls.thread = t;
    tls.renew_ready();
    return t;
}

// Brings a thread's state to the present recording and clears caches that a code object's death made void. Under the
// lock. A native thread that has just begun hangs under `start_node`.
void Recorder::sync(Thread& t, std::uint32_t start_node) {
    t.epoch = epoch_.load(std::memory_order_relaxed);
    hw_frames_forget(&t.memo);
    t.top = &t.no_frames;
    ::memset(t.line_cursors, 0, sizeof t.line_cursors);
    if (t.session == session_) {
        if (t.is_to_move) names_.move(t);
        if (t.interval != interval_) {
            t.forget_edges();
            t.no_frames.forget_accounts();
            t.interval = interval_;
        }
        return;
    }
    t.forget_edges();
    t.session = session_;
    t.interval = interval_;
    t.last_block = 0;
    names_.set_base(t, start_node);
}

// --- stacks

// A (parent, instruction) pair this thread has not met lately. Under the lock.
void Recorder::intern_slot(Thread& t, const hw_slot& slot, std::uint64_t key, Thread::Edge* edge) {
    const auto below = static_cast<std::uint32_t>(key), parent = below & ~Thread::kInternal;
    const bool is_below_internal = (below & Thread::kInternal) != 0;
    *edge = {slot.instr, key, below, {0, 0}};
    t.note_filled(edge);
    edge->instr = nullptr;  // until all is known: what follows may throw
    const void* object = hw_slot_code(&slot);
    if (&slot + 1 < t.memo.slots + t.memo.depth) codes_.expect(*(&slot + 1));
    const Codes::Position* const position =
        object == nullptr || is_dying(object) ? nullptr : codes_.position_of(t, slot, object);
    if (position == nullptr) {
        // Such a frame counts as the one below it: an interpreter's helper frame, for good, and one that is being
        // built, as at each call of a generator, as long as its code lives. A code object that is dying, or was never
        // interned, gives no sign when its address is used again.
        if (object == nullptr || (!is_dying(object) && tree_.known_code(object) != 0)) edge->instr = slot.instr;
        return;
    }
    const std::uint8_t kind = position->kind;
    // Code that hiwater calls for itself counts as hiwater's, whatever its file: such frames have node 0, which no
    // other frame has. A generated method has no file that identifies its owner: it belongs to hiwater if hiwater's
    // code called it.
    const bool is_below_own = parent == 0 && is_below_internal;
    if (is_below_own || (kind & Codes::kOwn) != 0) {
        edge->place = Thread::kInternal;
    } else if ((kind & Codes::kInternal) != 0 || ((kind & Codes::kGenerated) != 0 && is_below_internal)) {
        edge->place = Thread::kInternal | ((kind & Codes::kLauncher) != 0 ? t.base : parent);
    } else {
        edge->place = tree_.child(parent, position->code, position->line);
    }
    edge->instr = slot.instr;
}

// The top of the stack is one that this thread has not met lately: gives nodes to the slots from `changed` up. Under
// the lock.
void Recorder::move_top(Thread& t, hw_slot* changed) {
    if (t.memo.depth == 0) {
        t.top = &t.no_frames;
        return;
    }
    t.stand_from(changed, [&](const hw_slot& slot, std::uint64_t key, Thread::Edge* edge) {
        intern_slot(t, slot, key, edge);
        return true;
    });
}

// The same for events that must not throw. The lock is held by its fast path, so `busy` must be set while our own code
// runs.
bool Recorder::settle_top(Thread& t, hw_slot* changed) noexcept {
    bool settled = false;
    guarded([&] {
        move_top(t, changed);
        settled = true;
    });
    if (!settled) hw_frames_forget(&t.memo);
    return settled;
}

// The account of the stack in t.top, opened where there is none yet; 0 where the stack is our own. Under the lock.
std::uint32_t Recorder::account_at_top(Thread& t, Kind kind) {
    std::uint32_t& account = t.top->account[static_cast<std::uint32_t>(kind)];
    if (account == 0 && !t.top->is_internal()) {
        if (native_frames_.are_wanted()) return account_of_native_frames(t, kind);  // never kept in t.top
        account = opened_account(charged_node(t), kind);
    }
    return account;
}

std::uint32_t Recorder::opened_account(std::uint32_t node, Kind kind) {
    const std::uint32_t account = accounts_.account(node, kind);
    if (account > LiveTable::kMaxAccount) throw capture::NoRoom{0};
    return account;
}

}  // namespace hiwater
