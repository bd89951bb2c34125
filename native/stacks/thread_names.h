// Names of threads: which one a thread has, and where its blocks hang when it gets another.
//
// A name is the code of a node: of the root of a Python thread's stacks, or of the [thread] frame of a native thread.
// Threads of one name share the node. A thread that is renamed keeps its node, with the new name, if no other thread
// was ever at it: then all its blocks carry the last name. Otherwise what it allocates from then on hangs under another
// node.
//
// Threads whose names differ only in numbers are a series: a server's "Thread-1 (work)", "Thread-2 (work)" …, one for
// each request. A few have nodes of their own, and so have all that start before one of them has ended, as those of a
// pool. Those that come later share a node, "Thread (work)": else the call paths would grow with each request.
#pragma once

#include <cstdint>

#include "base/pages.h"
#include "stacks/call_tree.h"
#include "stacks/thread_state.h"

namespace hiwater {

// Callers hold the recorder's lock, for note(), take_noted() and forget() also the lock of the pool of threads.
class ThreadNames {
public:
    explicit ThreadNames(CallTree& tree) noexcept : tree_(tree) {}

    // A thread's first event in a recording. `start_node`: of the stack that started a native thread, or 0.
    void set_base(Thread& t, std::uint32_t start_node);
    // A thread's name has changed. Returns false where other threads were at its node, or threads of its new name share
    // one: then it must move at its next event. `is_last`: there is an end to it, so the name need not be one of the
    // first.
    bool show(Thread& t, bool is_last = false);
    // Of a thread that is not alone at its node.
    void move(Thread& t);
    bool is_alone(const Thread& t) const noexcept { return base_threads_[t.base] != kSeveral; }
    // Whether threads were renamed too often to be followed.
    bool has_too_many() const noexcept { return renames_ >= kMostRenames; }

    // A name of a thread that is older than the recording, or has not run yet, until take_noted() gives it to the
    // thread.
    void note(ThreadId id, const char* name, NameOf from);
    void take_noted(Thread& t) noexcept;
    void forget() noexcept;

private:
    // A program that names thousands of threads must not make the recorder grow with it.
    static constexpr std::uint32_t kMostThreadRoots = 1000, kMostRenames = 1000;
    static constexpr std::size_t kMostNoted = 1000;
    static constexpr std::uint32_t kMostNodesOfSeries = 8;  // once one of its threads has ended
    static constexpr std::uint8_t kSeveral = 2;
    struct Series {
        std::uint64_t hash;   // of what the names have in common
        std::uint32_t nodes;  // for a name each
        bool has_ended;
    };
    struct NotedName {
        ThreadId id;
        ThreadName name;
    };

    void stand_at_base(Thread& t, std::uint32_t node);
    std::uint32_t child_counted(std::uint32_t parent, std::uint32_t code);
    std::uint32_t root_node(const char* name);
    std::uint32_t named_node(const char* of_nodes, std::uint32_t present);
    Series* series_of(std::uint64_t hash) noexcept;
    ThreadName name_of_nodes(Thread& t);

    CallTree& tree_;
    PageVector<NotedName> noted_;  // of threads that have no state yet
    PageVector<Series> series_;
    PageVector<std::uint8_t> base_threads_;  // by node: how many threads it has been the base of; 2: more than one
    std::uint32_t roots_ = 0, renames_ = 0;  // nodes and codes made for names
};

}  // namespace hiwater
