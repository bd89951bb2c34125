// Which stack an event belongs to: the calling thread's frames, interned.
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include <new>

#include "devices/device_watch.h"
#include "session/recorder.h"
#include "session/sampler.h"

namespace hiwater {

using capture::CodeKind;
using capture::Kind;

std::atomic<std::uint32_t> g_code_generation[kCodePages] = {};
SampleStreams g_no_streams = {};
constinit thread_local ThreadLocal tls __attribute__((tls_model("initial-exec")));

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

// --- threads -------------------------------------------------------------------------------------------------------------

void Recorder::give_thread_back(void* thread) noexcept {
    auto* t = static_cast<Thread*>(thread);
    Recorder& self = instance();
    if (t->ticket.active.load(std::memory_order_relaxed) != 0)
        self.abandon(t);  // a handler ended the thread in the midst of an event
    BusyGuard busy;
    tls.exit_node = t->base;
    tls.exit_session = t->session;
    tls.exiting = true;
    tls.thread = nullptr;
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
        t = static_cast<Thread*>(map_pages(round_up(sizeof(Thread), kPage)));
        if (t == nullptr) return nullptr;
        t->next_of_all = all_;
        all_ = t;
        return t;
    }
    pool_ = t->next;
    const hw_memo memo = t->memo;
    Thread* const next_of_all = t->next_of_all;
    ::madvise(t, round_up(sizeof(Thread), kPage), MADV_DONTNEED);
    t->next_of_all = next_of_all;
    t->memo = memo;
    t->memo.thread = 0;
    t->memo.state = nullptr;
    return t;
}

Thread* Recorder::make_thread() noexcept {
    if (tls.exiting) return nullptr;
    static pthread_key_t key = [] {
        pthread_key_t made{};
        ::pthread_key_create(&made, &Recorder::give_thread_back);
        return made;
    }();
    UninterruptedHold hold(pool_lock_);
    Thread* t = take_thread();
    if (t == nullptr) return nullptr;
    t->top = &t->no_frames;
    hw_frames_forget(&t->memo);
    // May allocate for a late key; we are busy, so that is not recorded.
    if (::pthread_setspecific(key, t) != 0) {
        t->next = pool_;
        pool_ = t;
        return nullptr;
    }
    t->id = ::pthread_self();
    take_noted_name(*t);
    tls.thread = t;
    return t;
}

// Brings a thread's state to the present recording and clears caches that a code object's death made void. Under the lock. A native thread
// that has just begun hangs under `start_node`.
void Recorder::sync(Thread& t, std::uint32_t start_node) {
    t.epoch = epoch_.load(std::memory_order_relaxed);
    hw_frames_forget(&t.memo);
    t.top = &t.no_frames;
    ::memset(t.line_cursors, 0, sizeof t.line_cursors);
    if (t.session == session_) {
        if (t.is_to_move) move_to_name(t);
        return;
    }
    // The state of a new thread is zeroed pages, most of which it never touches.
    if (t.session != 0) ::memset(t.edges, 0, sizeof t.edges);
    t.session = session_;
    t.last_block = 0;
    set_base(t, start_node);
}

// --- stacks --------------------------------------------------------------------------------------------------------------

std::uint8_t Recorder::classify(std::string_view function, std::string_view file) const noexcept {
    if (!internal_prefix_.empty() && file.starts_with(internal_prefix_))
        return function == "_hiwater_launch_" ? kCodeInternal | kCodeLauncher
               : function == "_hiwater_own_"  ? kCodeInternal | kCodeOwn
                                              : kCodeInternal;
    if (!own_script_.empty() && file == own_script_) return kCodeInternal;
    if (file.starts_with("<frozen ")) return kCodeLibrary;
    for (const std::string& prefix : library_prefixes_)
        if (file.starts_with(prefix)) return kCodeLibrary;
    return 0;
}

std::uint8_t Recorder::class_of(std::uint32_t code) {
    constexpr std::uint8_t known = 0x80;
    if (code >= code_class_.size()) code_class_.resize(code + 1);
    if ((code_class_[code] & known) == 0) {
        const capture::CodeRecord& record = tree_.code_record(code);
        code_class_[code] = known | classify(tree_.text_of(record.function), tree_.text_of(record.file));
    }
    return code_class_[code];
}

std::uint32_t Recorder::code_of(const hw_code_info& info) {
    if (const std::uint32_t known = tree_.known_code(info.code)) return known;
    char function[1000], file[2000];
    const std::uint32_t function_bytes = hw_str_utf8(info.qualname, function, sizeof function);
    const std::uint32_t file_bytes = hw_str_utf8(info.filename, file, sizeof file);
    const std::uint32_t code =
        tree_.code({function, function_bytes}, {file, file_bytes}, static_cast<std::uint32_t>(info.first_line), CodeKind::python);
    tree_.remember_code(info.code, code);
    return code;
}

// What an instruction is part of, and whether a frame that stands there counts. Under the lock. Functions are met under many parents: their
// line tables are read once for each line, as long as no other takes the place.
const Recorder::Position* Recorder::position_of(Thread& t, const hw_slot& slot, const void* object) {
    const auto at = reinterpret_cast<std::uintptr_t>(slot.instr);
    const std::uint32_t generation = code_generation(slot.instr).load(std::memory_order_relaxed);
    Position& position = positions_[mix(at) % kPositions];
    if (position.instr == slot.instr && position.generation == generation) return &position;
    hw_code_info info;
    hw_line_cursor& cursor = t.line_cursors[mix(reinterpret_cast<std::uintptr_t>(object)) % Thread::kLineCursors];
    if (!hw_frame_describe(&slot, &cursor, &info)) return nullptr;
    const std::uint32_t code = code_of(info);
    const auto kind = static_cast<std::uint8_t>(class_of(code) | (info.is_generated != 0 ? kCodeGenerated : 0));
    position = {slot.instr, generation, code, static_cast<std::uint32_t>(info.line), kind};
    return &position;
}

// A (parent, instruction) pair this thread has not met lately. Under the lock.
void Recorder::intern_slot(Thread& t, const hw_slot& slot, std::uint64_t key, Thread::Edge* edge) {
    const std::uint32_t parent = key & ~(1u << 31), parent_flags = key >> 31 & 1;
    *edge = {slot.instr, key, parent, parent_flags, {0, 0}};
    edge->instr = nullptr;  // until all is known: what follows may throw
    const void* object = hw_slot_code(&slot);
    const Position* const position = object == nullptr || is_dying(object) ? nullptr : position_of(t, slot, object);
    if (position == nullptr) {
        // Such a frame counts as the one below it. Only for an interpreter's helper frame is that true for good: a code object that
        // is dying, or was never interned, gives no sign when its address is used again.
        if (object == nullptr) edge->instr = slot.instr;
        return;
    }
    const std::uint8_t kind = position->kind;
    // What hiwater calls for itself is its own, whoever wrote it: such frames have node 0, which no others have. A generated method has no
    // file that says whose it is: it belongs to hiwater where hiwater's own code called it.
    const bool is_below_own = parent == 0 && parent_flags != 0;
    if (is_below_own || (kind & kCodeOwn) != 0) {
        edge->node = 0;
        edge->flags = Thread::kInternal;
    } else if ((kind & kCodeInternal) != 0 || ((kind & kCodeGenerated) != 0 && parent_flags != 0)) {
        edge->node = (kind & kCodeLauncher) != 0 ? t.base : parent;
        edge->flags = Thread::kInternal;
    } else {
        edge->node = tree_.child(parent, position->code, position->line);
        edge->flags = 0;
    }
    edge->instr = slot.instr;
}

// The top of the stack is one that this thread has not met lately: gives nodes to the slots from `changed` up. Under the lock.
void Recorder::move_top(Thread& t, std::uint32_t changed) {
    const std::uint32_t depth = t.memo.depth;
    if (depth == 0) {
        t.top = &t.no_frames;
        return;
    }
    std::uint32_t i = changed < depth ? changed : depth - 1;  // as in Thread::knows_from()
    hw_slot* slots = t.memo.slots;
    std::uint32_t node = i == 0 ? t.base : slots[i - 1].node, flags = i == 0 ? 0 : slots[i - 1].flags;
    Thread::Edge* edge = nullptr;
    for (; i < depth; ++i) {
        hw_slot& slot = slots[i];
        const std::uint64_t key = Thread::key_under(flags << 31 | node, slot.instr);
        edge = t.edge_of(slot.instr, key);
        if (edge->instr != slot.instr || edge->key != key) [[unlikely]]
            intern_slot(t, slot, key, edge);
        slot.node = node = edge->node;
        slot.flags = flags = edge->flags;
        if (flags != 0) t.note_own(i);
    }
    t.top = edge;
    hw_frames_settle(&t.memo);
}

// The same for events that must not throw. The lock is held by its fast path, so `busy` must tell our own code that it is inside.
bool Recorder::settle_top(Thread& t, std::uint32_t changed) noexcept {
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
    if (account == 0 && !is_internal(t)) {
        const std::uint32_t opened = accounts_.account(t.top->node, kind);
        if (opened > LiveTable::kMaxAccount) throw capture::NoRoom{0};
        account = opened;
    }
    return account;
}

}  // namespace hiwater
