// Which stack an event belongs to: the calling thread's frames, interned.
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <new>

#include "recorder.h"
#include "sampler.h"

namespace hiwater {

using capture::CodeKind;
using capture::Kind;

constinit thread_local ThreadLocal tls __attribute__((tls_model("initial-exec"))) = {};

namespace {

constexpr std::uint32_t kFirstCapacity = 128, kMostThreadRoots = 1000;

int grow_memo(hw_memo* memo, std::uint32_t capacity) {
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

bool is_dying(const void* code) noexcept {
    for (const DyingCode* d = tls.dying; d != nullptr; d = d->outer)
        if (d->code == code) return true;
    return false;
}

}  // namespace

// --- threads -------------------------------------------------------------------------------------------------------------

Thread* Recorder::mine() noexcept {
    Thread* t = tls.thread;
    return t != nullptr ? t : make_thread();
}

void Recorder::give_thread_back(void* thread) noexcept {
    auto* t = static_cast<Thread*>(thread);
    Recorder& self = instance();
    tls.exit_node = t->base;
    tls.exiting = true;
    tls.thread = nullptr;
    Hold hold(self.pool_lock_);
    t->next = self.pool_;
    self.pool_ = t;
}

Thread* Recorder::make_thread() noexcept {
    if (tls.exiting) return nullptr;
    Thread* t = nullptr;
    {
        Hold hold(pool_lock_);
        t = pool_;
        if (t != nullptr) pool_ = t->next;
    }
    hw_memo memo{};
    if (t != nullptr) {
        memo = t->memo;
        ::madvise(t, round_up(sizeof(Thread), kPage), MADV_DONTNEED);
    } else {
        t = static_cast<Thread*>(map_pages(round_up(sizeof(Thread), kPage)));
        if (t == nullptr) return nullptr;
    }
    t->memo = memo;
    t->memo.depth = 0;
    static pthread_key_t key = [] {
        pthread_key_t made{};
        ::pthread_key_create(&made, &Recorder::give_thread_back);
        return made;
    }();
    // May allocate for a late key; we are busy, so that is not recorded.
    if (::pthread_setspecific(key, t) != 0) {
        unmap_pages(t, round_up(sizeof(Thread), kPage));
        return nullptr;
    }
    tls.thread = t;
    return t;
}

std::uint32_t Recorder::root_node(const char* name) {
    std::uint32_t code = tree_.code(name, "", 0, CodeKind::thread);
    const std::uint64_t before = tree_.node_count();
    if (roots_ >= kMostThreadRoots) code = tree_.code("[other threads]", "", 0, CodeKind::thread);
    const std::uint32_t node = tree_.child(0, code, 0);
    if (tree_.node_count() != before) ++roots_;
    return node;
}

void Recorder::set_base(Thread& t) {
    if (!t.named_by_program) {
        if (::syscall(SYS_gettid) == ::getpid()) {
            ::snprintf(t.name, sizeof t.name, "MainThread");
        } else if (t.name[0] == '\0') {
            char own[16] = {};
            ::prctl(PR_GET_NAME, own);
            ::snprintf(t.name, sizeof t.name, "thread %s", own);
        }
    }
    t.root = t.base = root_node(t.name);
}

// Brings a thread's state to the present recording and clears caches that a code object's death made void. Under the lock.
void Recorder::sync(Thread& t) {
    t.epoch = epoch_.load(std::memory_order_relaxed);
    t.memo.depth = 0;
    t.top_depth = 0;
    t.top_node = 0;
    if (t.session == session_) return;
    t.session = session_;
    t.last_block = 0;
    ::memset(t.edges, 0, sizeof t.edges);
    set_base(t);
}

void Recorder::adopt_thread(std::uint32_t node, std::uint32_t session, const char* name) noexcept {
    if (!recording()) return;
    BusyGuard busy;
    Thread* t = mine();
    if (t == nullptr) return;
    if (name[0] != '\0') {
        ::snprintf(t->name, sizeof t->name, "%s", name);
        t->named_by_program = true;
    }
    Hold hold(lock_);
    if (g_mode.load(std::memory_order_relaxed) != Mode::on || session != session_) return;
    try {
        sync(*t);
        if (node != 0) t->base = node;
    } catch (const std::exception&) {
        fail("no memory for a thread's state");
    } catch (const capture::NoRoom&) {
        fail("the capture cannot grow");
    }
}

void Recorder::name_thread(const char* name) noexcept {
    if (!recording()) return;
    BusyGuard busy;
    Thread* t = mine();
    if (t == nullptr) return;
    ::snprintf(t->name, sizeof t->name, "%s", name);
    t->named_by_program = true;
    t->session = 0;
    t->epoch = 0;
}

void Recorder::note_thread_name(const char* name) noexcept {
    Thread* t = tls.thread;
    const bool hangs_under_another = t != nullptr && t->base != t->root;
    if (name == nullptr || hangs_under_another || (t != nullptr && t->named_by_program) || ::syscall(SYS_gettid) == ::getpid()) return;
    name_thread(name);
}

std::uint32_t Recorder::thread_start_node() noexcept {
    BusyGuard busy;
    Thread* t = mine();
    if (t == nullptr) return 0;
    try {
        find_top(*t);
        Hold hold(lock_);
        if (g_mode.load(std::memory_order_relaxed) != Mode::on || t->session != session_) return 0;
        return tree_.child(t->top_node, tree_.code("[thread]", "", 0, CodeKind::native_thread), 0);
    } catch (const std::exception&) {
        fail("no memory for the call tree");
    } catch (const capture::NoRoom&) {
        fail("the capture cannot grow");
    }
    return 0;
}

// --- stacks --------------------------------------------------------------------------------------------------------------

std::uint8_t Recorder::classify(std::string_view function, std::string_view file) const noexcept {
    if (!internal_prefix_.empty() && file.starts_with(internal_prefix_))
        return function == "_hiwater_launch_" ? kCodeInternal | kCodeLauncher : kCodeInternal;
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
    const std::uint32_t code = tree_.code({function, function_bytes}, {file, file_bytes},
                                          static_cast<std::uint32_t>(info.first_line), CodeKind::python);
    tree_.remember_code(info.code, code);
    return code;
}

// A (parent, instruction) pair this thread has not met lately.
void Recorder::intern_slot(Thread& t, const hw_slot& slot, std::uint32_t parent, std::uint32_t parent_flags, Thread::Edge* edge) {
    *edge = {slot.instr, parent, parent, parent_flags, t.epoch};
    hw_code_info info;
    if (is_dying(hw_slot_code(&slot)) || !hw_frame_describe(&slot, &info)) return;
    Hold hold(lock_);
    if (g_mode.load(std::memory_order_relaxed) != Mode::on || t.session != session_) {
        edge->epoch = 0;
        return;
    }
    const std::uint32_t code = code_of(info);
    const std::uint8_t kind = class_of(code);
    if ((kind & kCodeInternal) != 0) {
        edge->node = (kind & kCodeLauncher) != 0 ? t.base : parent;
        edge->flags = Thread::kInternal;
        return;
    }
    edge->node = tree_.child(parent, code, static_cast<std::uint32_t>(info.line));
    edge->flags = 0;
}

// Gives nodes to slots [from, depth).
void Recorder::intern(Thread& t, std::uint32_t from) {
    hw_memo& memo = t.memo;
    std::uint32_t parent = from == 0 ? t.base : memo.slots[from - 1].node;
    std::uint32_t flags = from == 0 ? 0 : memo.slots[from - 1].flags;
    for (std::uint32_t i = from; i < memo.depth; ++i) {
        hw_slot& slot = memo.slots[i];
        const auto place = (reinterpret_cast<std::uintptr_t>(slot.instr) >> 1) ^ (parent * 0x9e3779b1u) ^ flags;
        Thread::Edge& edge = t.edges[(place ^ place >> 11) % Thread::kEdges];
        if (edge.instr != slot.instr || edge.parent != parent || edge.epoch != t.epoch) [[unlikely]]
            intern_slot(t, slot, parent, flags, &edge);
        slot.node = parent = edge.node;
        slot.flags = flags = edge.flags;
    }
}

// Leaves the stack of this moment in t.top_node and t.top_flags.
void Recorder::find_top(Thread& t) {
    if (t.epoch != epoch_.load(std::memory_order_relaxed)) [[unlikely]] {
        {
            Hold hold(lock_);
            if (g_mode.load(std::memory_order_relaxed) != Mode::on) {
                t.top_flags = Thread::kInternal;
                return;
            }
            sync(t);
        }
        sampler::resume_if_due();
    }
    const std::uint32_t changed = hw_frames_refresh(&t.memo, grow_memo);
    const std::uint32_t depth = t.memo.depth;
    if (changed == depth && depth == t.top_depth && t.top_node != 0) [[likely]] return;
    if (changed < depth) intern(t, changed);
    const std::uint32_t node = depth == 0 ? t.base : t.memo.slots[depth - 1].node;
    t.top_flags = depth == 0 ? 0 : t.memo.slots[depth - 1].flags;
    t.top_depth = depth;
    if (node == t.top_node) return;
    t.top_node = node;
    ::memset(t.top_ledger, 0, sizeof t.top_ledger);
}

std::uint32_t Recorder::open_ledger(Thread& t, Kind kind) {
    const auto k = static_cast<std::uint32_t>(kind);
    Thread::OpenLedger& known = t.ledgers[(t.top_node ^ k << 5) % Thread::kLedgers];
    if (known.node != t.top_node || known.kind != k || known.session != t.session) {
        Hold hold(lock_);
        if (g_mode.load(std::memory_order_relaxed) != Mode::on || t.session != session_) return 0;
        const std::uint32_t ledger = accounts_.ledger(t.top_node, kind);
        if (ledger > LiveTable::kMaxLedger) throw capture::NoRoom{0};
        known = {t.top_node, k, ledger, t.session};
    }
    return t.top_ledger[k] = known.ledger;
}

// The ledger an allocation of this thread belongs to now; 0 for what hiwater's own Python code allocates.
std::uint32_t Recorder::current_ledger(Thread& t, Kind kind) {
    find_top(t);
    if ((t.top_flags & Thread::kInternal) != 0) [[unlikely]] return 0;
    const std::uint32_t ledger = t.top_ledger[static_cast<std::uint32_t>(kind)];
    return ledger != 0 ? ledger : open_ledger(t, kind);
}

}  // namespace hiwater
