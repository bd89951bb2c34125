// The native frames of a stack: what there is between the innermost Python frame and the allocator. They are nodes of
// the call tree with a root of their own, because the same ones are below many Python stacks. One more node joins both:
// its parent is the Python frame, and its line the number of the innermost native frame. Only in a recording that wants
// them. Callers hold the recorder's lock.
#pragma once

#include <cstdint>
#include <string>

#include "capture/capture_file.h"
#include "stacks/call_tree.h"
#include "stacks/known_walks.h"
#include "stacks/thread_state.h"
#include "unwind/unwinder.h"

namespace hiwater {

// What a recording of native frames keeps for each thread.
struct NativeStack {
    // (caller's node, return address) -> node of a native frame.
    struct Edge {
        std::uintptr_t address;
        std::uint32_t parent, node;
    };
    // (node that the Python stack is charged to, innermost native frame) -> node of the whole stack, and its accounts
    // of the two kinds that come from every line.
    struct Joint {
        std::uint32_t charged, innermost, node;
        std::uint32_t account[2];  // 0: not opened yet
    };
    static constexpr std::uint32_t kEdges = 8192, kCharged = 256;

    Edge& edge_of(std::uintptr_t address, std::uint32_t parent) noexcept {
        const std::uint64_t place = (address ^ parent * 0x9e3779b97f4a7c15ULL) * 0x9e3779b97f4a7c15ULL;
        return edges[place >> 51];
    }
    Joint& joint_of(std::uint32_t charged_node, std::uint32_t innermost) noexcept {
        const std::uint64_t both = std::uint64_t{charged_node} << 32 | innermost;
        return joints[both * 0x9e3779b97f4a7c15ULL >> 51];
    }

    // A walk that an event needs: it may begin at the hook's caller.
    struct Wanted {
        KnownWalks::Key key;
        std::uintptr_t frame_pointer;
        std::uint32_t known;  // the account, as a known walk has it; 0: none is known
    };

    // The account of the known walk that comes to mind first; 0 where that would not be the same.
    [[gnu::always_inline]] std::uint32_t account_at(const KnownWalks::Key& key, const Thread& t) const noexcept {
        return are_walks_known(key, t) ? walks.account_at(key, frames.stack.end()) : 0;
    }
    // And of any other.
    std::uint32_t find_account(const KnownWalks::Key& key, const Thread& t) noexcept {
        return are_walks_known(key, t) ? walks.find_account(key, frames.stack.end()) : 0;
    }
    [[gnu::always_inline]] bool are_walks_known(const KnownWalks::Key& key, const Thread& t) const noexcept {
        return epoch == t.epoch && unloadings == unwind::g_unloadings.load(std::memory_order_relaxed) &&
               frames.stack.covers(key.stack_pointer);
    }

    std::uint32_t epoch;        // the thread's, when what is known of walks was right
    std::uint32_t known_below;  // blocks of fewer bytes may be charged by a known walk
    unwind::Frames frames;
    std::uint32_t session, interval, unloadings;  // of what follows
    bool has_nodes;                               // the frames have
    struct {
        std::uint32_t node, charged;
    } charged[kCharged];  // the Python stack -> the node that its memory is charged to
    Edge edges[kEdges];
    Joint joints[kEdges];
    static_assert(kEdges == 1u << (64 - 51));
    KnownWalks walks;
};

class NativeFrames {
public:
    explicit NativeFrames(CallTree& tree) noexcept : tree_(tree) {}

    void begin(capture::CaptureFile& file, const unwind::Scope& scope);
    bool are_wanted() const noexcept { return are_wanted_; }
    void forget() noexcept { unwinder_.forget(); }
    void forget_in_child() noexcept { unwinder_.forget_in_child(); }
    const unwind::Unwinder& unwinder() const noexcept { return unwinder_; }

    // Defined where they are used: each function between a hook and the walk is one more frame.
    // What a thread keeps, up to date; null where there is no memory for it.
    NativeStack* stack_of(Thread& t, std::uint32_t session, std::uint32_t interval) noexcept;
    // The node of the innermost of the thread's native frames. `wanted`: of what event, or null.
    std::uint32_t find(Thread& t, NativeStack& stack, const NativeStack::Wanted* wanted);
    // The node of a whole stack: kept in `stack`, or looked up in the tree.
    NativeStack::Joint& joint(NativeStack& stack, std::uint32_t charged, std::uint32_t innermost);
    std::uint32_t joint_node(std::uint32_t charged, std::uint32_t innermost) {
        return innermost == root_ ? charged : tree_.joint(charged, stack_code_, innermost);
    }
    // That the walk just done led to this node and account.
    void learn(NativeStack& stack, const NativeStack::Wanted& wanted, std::uint32_t innermost,
               std::uint32_t account) noexcept;

    // For checks: whether the native frames of two nodes are the same.
    bool are_same_frames(std::uint32_t a, std::uint32_t b) const noexcept { return frames_of(a) == frames_of(b); }
    void note_wrong_walk() noexcept { unwinder_.note_wrong_path(); }

private:
    std::uint32_t frames_of(std::uint32_t node) const noexcept {
        const capture::NodeRecord& record = tree_.node(node);
        return record.code == stack_code_ ? record.line : root_;
    }
    std::uint32_t child(std::uint32_t parent, std::uintptr_t address);
    std::uint32_t generated_code(std::uintptr_t address);
    std::uint32_t code_of(unwind::Module& module);

    CallTree& tree_;
    unwind::Unwinder unwinder_;
    capture::FileTable<capture::ModuleRecord> modules_;
    std::string program_;
    std::uint32_t unknown_code_ = 0, stack_code_ = 0;
    std::uint32_t root_ = 0;  // the node that outermost native frames are below
    bool are_wanted_ = false;
};

}  // namespace hiwater
