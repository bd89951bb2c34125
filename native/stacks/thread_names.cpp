// Names of threads: which one a thread has, and where its blocks hang when it gets another.
//
// A name is the code of a node: of the root of a Python thread's stacks, or of the [thread] frame of a native thread. Threads of one name
// share the node. A thread that is renamed keeps its node, with the new name, if no other thread was ever at it: then all its blocks carry
// the last name. Otherwise what it allocates from then on hangs under another node.
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

#include "stacks/current_stack.h"

namespace hiwater {

using capture::CodeKind;

namespace {

// A program that names thousands of threads must not make us grow with it.
constexpr std::uint32_t kMostThreadRoots = 1000, kMostRenames = 1000;
constexpr std::size_t kMostNoted = 1000;
constexpr std::uint8_t kSeveral = 2;

// As much of a text as there is room for, in whole characters of UTF-8.
void copy_text(char* out, std::size_t size, const char* text) noexcept {
    std::size_t length = ::strnlen(text, size);
    if (length == size) {
        --length;
        while (length > 0 && (text[length] & 0xc0) == 0x80) --length;
    }
    ::memcpy(out, text, length);
    ::memset(out + length, 0, size - length);
}

struct SystemName {
    char text[16] = {};
    SystemName() noexcept { ::prctl(PR_GET_NAME, text); }
};

struct ShownName {
    char text[80];
    CodeKind kind;
    ShownName(const Thread& t, CodeKind of_kind) noexcept : kind(of_kind) {
        ::snprintf(text, sizeof text, kind == CodeKind::thread ? "%s" : "[thread %s]", t.name.text);
    }
};

bool is_main_thread() noexcept { return ::syscall(SYS_gettid) == ::getpid(); }

}  // namespace

bool ThreadName::take(const char* name, NameOf from) noexcept {
    if (from < of || name[0] == '\0') return false;
    of = from;
    char given[sizeof text];
    copy_text(given, sizeof given, name);
    if (::memcmp(text, given, sizeof text) == 0) return false;
    ::memcpy(text, given, sizeof text);
    return true;
}

std::uint32_t Recorder::root_node(const char* name) {
    if (roots_ >= kMostThreadRoots && tree_.find_code(name, CodeKind::thread) == 0) name = "[other threads]";
    const std::uint64_t before = tree_.node_count();
    const std::uint32_t node = tree_.child(0, tree_.code(name, "", 0, CodeKind::thread), 0);
    if (tree_.node_count() != before) ++roots_;
    return node;
}

void Recorder::set_base(Thread& t, std::uint32_t start_node) {
    ThreadName& name = t.name;
    if (name.of == NameOf::nobody && is_main_thread()) {
        name.take("MainThread", NameOf::python_default);
    } else if (name.of == NameOf::nobody) {
        ::snprintf(name.text, sizeof name.text, "thread %s", SystemName().text);
    } else if (name.of == NameOf::system) {
        name.take(SystemName().text, NameOf::system);  // it may have changed between two recordings
    }
    t.root = root_node(name.text);
    t.is_to_move = false;
    const bool is_named = name.of == NameOf::system || name.of == NameOf::python;
    stand_at_base(t, start_node == 0 ? t.root : is_named ? named_node(t, start_node) : start_node);
}

// The [thread] frame with a native thread's name, in the place of one that it has or would have; that one when there are too many.
std::uint32_t Recorder::named_node(const Thread& t, std::uint32_t present) {
    if (roots_ >= kMostThreadRoots) return present;
    const std::uint64_t before = tree_.node_count();
    const ShownName name(t, CodeKind::native_thread);
    const std::uint32_t node = tree_.child(tree_.node(present).parent, tree_.code(name.text, "", 0, name.kind), 0);
    if (tree_.node_count() != before) ++roots_;
    return node;
}

void Recorder::stand_at_base(Thread& t, std::uint32_t node) {
    if (node >= base_threads_.size()) base_threads_.resize(node + 1);
    if (base_threads_[node] != kSeveral) ++base_threads_[node];
    t.base = node;
    t.no_frames = {nullptr, 0, node, 0, {0, 0}};
}

// A thread's name has changed. Under both locks. `is_last`: there is an end to it, so the name need not be one of the first.
void Recorder::show_name(Thread& t, bool is_last) {
    if (t.session != session_) return;  // its next event does it
    if (base_threads_[t.base] == kSeveral) {
        t.is_to_move = true;
        if (&t == tls.thread) {
            t.epoch = 0;
        } else {
            request_attention();
        }
        return;
    }
    const ShownName name(t, t.base == t.root ? CodeKind::thread : CodeKind::native_thread);
    std::uint32_t code = tree_.find_code(name.text, name.kind);
    if (code == 0) {
        if (!is_last && renames_ >= kMostRenames) return;
        ++renames_;
        code = tree_.code(name.text, "", 0, name.kind);
    }
    if (tree_.node(t.base).code != code) tree_.change_code(t.base, code);
}

// Of a thread that is not alone at its node. Under the lock.
void Recorder::move_to_name(Thread& t) {
    const bool is_native = t.base != t.root;
    t.is_to_move = false;
    if (!is_native) t.root = root_node(t.name.text);
    stand_at_base(t, is_native ? named_node(t, t.base) : t.root);
}

// Before a copy of the capture, and at its end: the names of threads that were renamed too often to be followed. Under the lock.
void Recorder::show_last_names() {
    if (renames_ < kMostRenames) return;
    UninterruptedHold hold(pool_lock_);
    for (Thread* t = all_; t != nullptr; t = t->next_of_all)
        if (t->id != 0 && t->session == session_ && t->name.of != NameOf::nobody && base_threads_[t->base] != kSeveral)
            show_name(*t, true);
}

// A name of a thread that is older than the recording, or has not run yet.
void Recorder::note_name(pthread_t id, const char* name, NameOf from) {
    for (NotedName& noted : noted_names_)
        if (noted.id == id) return static_cast<void>(noted.name.take(name, from));
    if (noted_names_.size() >= kMostNoted) return;
    NotedName noted{id, {}};
    noted.name.take(name, from);
    noted_names_.push_back(noted);
}

// Under the pool's lock.
void Recorder::take_noted_name(Thread& t) noexcept {
    for (NotedName& noted : noted_names_) {
        if (noted.id != t.id) continue;
        t.name = noted.name;
        noted = noted_names_[noted_names_.size() - 1];
        return noted_names_.resize(noted_names_.size() - 1);
    }
}

void Recorder::forget_names() noexcept {
    UninterruptedHold hold(pool_lock_);
    noted_names_.reset();
    base_threads_.reset();
    roots_ = renames_ = 0;
}

void Recorder::name_thread(pthread_t id, const char* name, NameOf from) noexcept {
    if (!recording() || is_inside() || pid_ != ::getpid()) return;  // the child of a vfork names itself
    if_there_is_room([&] {
        Hold hold(lock_, ticket());
        if (!is_on()) return;
        UninterruptedHold pool(pool_lock_);
        Thread* t = tls.thread;
        if (t == nullptr || t->id != id)
            for (t = all_; t != nullptr && t->id != id;) t = t->next_of_all;
        if (t == nullptr) return note_name(id, name, from);
        if (t->name.take(name, from)) show_name(*t, false);
    });
}

void Recorder::adopt_thread(std::uint32_t node, std::uint32_t session, const ThreadName& name) noexcept {
    if (!recording()) return;
    BusyGuard busy;
    Thread* t = mine();
    if (t == nullptr) return;
    guarded([&] {
        Hold hold(lock_, ticket());
        // What was noted is of a thread that had this id before, unless somebody has named this one since it was made.
        const bool is_named = t->name.of == NameOf::system && ::strcmp(t->name.text, SystemName().text) == 0;
        if (!is_named) t->name = {};
        t->name.take(name.text, name.of);
        if (is_on() && session == session_) sync(*t, node);
    });
}

std::uint32_t Recorder::thread_start_node() noexcept {
    std::uint32_t node = 0;
    if (is_inside()) return node;
    guarded([&] {
        at_stack([&](Thread& t) { node = tree_.child(t.top->node, tree_.code("[thread]", "", 0, CodeKind::native_thread), 0); });
    });
    return node;
}

}  // namespace hiwater
