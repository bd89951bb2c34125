#include "stacks/thread_names.h"

#include <string.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <functional>
#include <string_view>

#include "base/process.h"
#include "base/raw_calls.h"
#include "stacks/current_stack.h"

namespace hiwater {

using capture::CodeKind;

namespace {

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
    SystemName() noexcept { platform::read_own_name(text); }
};

struct ShownName {
    char text[80];
    CodeKind kind;
    ShownName(const char* name, CodeKind of_kind) noexcept : kind(of_kind) {
        ::snprintf(text, sizeof text, kind == CodeKind::thread ? "%s" : "[thread %s]", name);
    }
};

// What threads have in common whose names differ only in numbers: "Thread (work)" of "Thread-17 (work)", "pool" of
// "pool-3_0". A number goes with what parts it from the text before. Those before a letter stay, and those of a
// function's name.
ThreadName without_numbers(const ThreadName& name) noexcept {
    ThreadName common = {};
    char* out = common.text;
    bool is_function = false;
    for (const char* in = name.text; *in != '\0';) {
        const char* const number = in + ::strspn(in, " -_.:#/");
        const char* const rest = number + ::strspn(number, "0123456789");
        is_function = is_function || *in == '(';
        if (!is_function && rest != number && std::isalpha(static_cast<unsigned char>(*rest)) == 0) {
            in = rest;
        } else {
            *out++ = *in++;
        }
    }
    return common;
}

// 0: its name has no numbers to leave out, or nothing else.
std::uint64_t series_hash(const ThreadName& name, const ThreadName& common) noexcept {
    if (common.text[0] == '\0' || ::strcmp(common.text, name.text) == 0) return 0;
    return std::hash<std::string_view>{}(common.text);
}

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

// Counts the node if it is new.
std::uint32_t ThreadNames::child_counted(std::uint32_t parent, std::uint32_t code) {
    const std::uint64_t before = tree_.node_count();
    const std::uint32_t node = tree_.child(parent, code, 0);
    if (tree_.node_count() != before) ++roots_;
    return node;
}

ThreadNames::Series* ThreadNames::series_of(std::uint64_t hash) noexcept {
    for (Series& series : series_)
        if (series.hash == hash) return &series;
    return nullptr;
}

// A name that nodes have already is theirs. Of a series with threads that have ended, those that come later share one.
ThreadName ThreadNames::name_of_nodes(Thread& t) {
    const ThreadName common = without_numbers(t.name);
    t.series.last = series_hash(t.name, common);
    if (t.series.last == 0) return t.name;
    for (const CodeKind kind : {CodeKind::thread, CodeKind::native_thread})
        if (tree_.find_code(ShownName(t.name.text, kind).text, kind) != 0) return t.name;
    Series* series = series_of(t.series.last);
    if (series == nullptr) {
        if (series_.size() >= kMostThreadRoots) return t.name;
        series_.push_back({t.series.last, 0, false});
        series = series_.end() - 1;
    }
    if (series->has_ended && series->nodes >= kMostNodesOfSeries) return common;
    ++series->nodes;
    return t.name;
}

std::uint32_t ThreadNames::root_node(const char* name) {
    if (roots_ >= kMostThreadRoots && tree_.find_code(name, CodeKind::thread) == 0) name = "[other threads]";
    return child_counted(0, tree_.code(name, "", 0, CodeKind::thread));
}

void ThreadNames::set_base(Thread& t, std::uint32_t start_node) {
    ThreadName& name = t.name;
    if (name.of == NameOf::nobody && process::is_main_thread()) {
        name.take("MainThread", NameOf::python_default);
    } else if (name.of == NameOf::nobody) {
        ::snprintf(name.text, sizeof name.text, "thread %s", SystemName().text);
    } else if (name.of == NameOf::system) {
        name.take(SystemName().text, NameOf::system);  // it may have changed between two recordings
    }
    t.is_main = process::is_main_thread();
    t.has_unowned = false;
    t.waits_at = {};
    t.wait_code = 0;
    for (const std::uint64_t hash : {t.ended_series.first, t.ended_series.last})
        if (Series* const ended = series_of(hash)) ended->has_ended = true;
    t.ended_series = {};
    const ThreadName of_nodes = name_of_nodes(t);
    t.series.first = t.series.last;
    t.root = root_node(of_nodes.text);
    t.is_to_move = false;
    const bool is_named = name.of == NameOf::system || name.of == NameOf::python;
    stand_at_base(t, start_node == 0 ? t.root : is_named ? named_node(of_nodes.text, start_node) : start_node);
}

// The [thread] frame with a native thread's name, in the place of one that it has or would have; that one when there
// are too many.
std::uint32_t ThreadNames::named_node(const char* of_nodes, std::uint32_t present) {
    if (roots_ >= kMostThreadRoots) return present;
    const ShownName name(of_nodes, CodeKind::native_thread);
    return child_counted(tree_.node(present).parent, tree_.code(name.text, "", 0, name.kind));
}

void ThreadNames::stand_at_base(Thread& t, std::uint32_t node) {
    if (node >= base_threads_.size()) base_threads_.resize(node + 1);
    if (base_threads_[node] != kSeveral) ++base_threads_[node];
    t.base = node;
    t.no_frames = {nullptr, 0, node, {0, 0}};
}

bool ThreadNames::show(Thread& t, bool is_last) {
    if (!is_alone(t)) return false;
    // A thread that names itself joins its series here. One that is of the series keeps its node.
    const bool is_of_series = t.series.last != 0 && t.series.last == series_hash(t.name, without_numbers(t.name));
    if (!is_of_series && !is_last && ::strcmp(name_of_nodes(t).text, t.name.text) != 0) return false;
    const ShownName name(t.name.text, t.base == t.root ? CodeKind::thread : CodeKind::native_thread);
    std::uint32_t code = tree_.find_code(name.text, name.kind);
    if (code == 0) {
        if (!is_last && has_too_many()) return true;
        ++renames_;
        code = tree_.code(name.text, "", 0, name.kind);
    }
    if (tree_.node(t.base).code != code) tree_.change_code(t.base, code);
    return true;
}

void ThreadNames::move(Thread& t) {
    const bool is_native = t.base != t.root;
    t.is_to_move = false;
    const ThreadName of_nodes = name_of_nodes(t);
    if (!is_native) t.root = root_node(of_nodes.text);
    stand_at_base(t, is_native ? named_node(of_nodes.text, t.base) : t.root);
}

void ThreadNames::note(ThreadId id, const char* name, NameOf from) {
    for (NotedName& noted : noted_)
        if (noted.id == id) return static_cast<void>(noted.name.take(name, from));
    if (noted_.size() >= kMostNoted) return;
    NotedName noted{id, {}};
    noted.name.take(name, from);
    noted_.push_back(noted);
}

void ThreadNames::take_noted(Thread& t) noexcept {
    for (NotedName& noted : noted_) {
        if (noted.id != t.id) continue;
        t.name = noted.name;
        noted = noted_[noted_.size() - 1];
        return noted_.resize(noted_.size() - 1);
    }
}

void ThreadNames::forget() noexcept {
    noted_.reset();
    base_threads_.reset();
    series_.reset();
    roots_ = renames_ = 0;
}

// --- events

// Under both locks.
void Recorder::show_name(Thread& t, bool is_last) {
    if (t.session != session_ || names_.show(t, is_last)) return;  // of another recording: its next event does it
    t.is_to_move = true;
    if (&t == tls.thread) {
        t.epoch = Thread::kNoEpoch;
    } else {
        request_attention();
    }
}

// Before a copy of the capture, and at its end: the names of threads that were renamed too often to be followed. Under
// the lock.
void Recorder::show_last_names() {
    if (!names_.has_too_many()) return;
    UninterruptedHold hold(pool_lock_);
    for (Thread* t = all_; t != nullptr; t = t->next_of_all)
        if (t->id != 0 && t->session == session_ && t->name.of != NameOf::nobody && names_.is_alone(*t))
            show_name(*t, true);
}

void Recorder::name_thread(ThreadId id, const char* name, NameOf from) noexcept {
    if (!recording() || is_inside() || pid_ != ::getpid()) return;  // the child of a vfork names itself
    if_there_is_room([&] {
        Hold hold(lock_, ticket());
        if (!is_on()) return;
        UninterruptedHold pool(pool_lock_);
        Thread* t = tls.thread;
        if (t == nullptr || t->id != id)
            for (t = all_; t != nullptr && t->id != id;) t = t->next_of_all;
        if (t == nullptr) return names_.note(id, name, from);
        if (t->name.take(name, from)) show_name(*t, false);
    });
}

void Recorder::adopt_thread(std::uint32_t node, std::uint32_t session, const Starters& starters,
                            const ThreadName& name) noexcept {
    if (!recording()) return;
    BusyGuard busy;
    Thread* t = mine();
    if (t == nullptr) return;
    guarded([&] {
        Hold hold(lock_, ticket());
        // What was noted is of a thread that had this id before, unless somebody has named this one since it was made.
        const bool is_named = t->name.of == NameOf::system && ::strcmp(t->name.text, SystemName().text) == 0;
        if (!is_named) t->name = {};
        t->starters = starters;
        t->name.take(name.text, name.of);
        if (is_on() && session == session_) sync(*t, node);
    });
}

std::uint32_t Recorder::thread_start_node() noexcept {
    std::uint32_t node = 0;
    if (is_inside()) return node;
    at_stack_guarded([&](Thread& t) {
        node = tree_.child(t.top->node(), tree_.code("[thread]", "", 0, CodeKind::native_thread), 0);
    });
    return node;
}

}  // namespace hiwater
