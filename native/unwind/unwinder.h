// Walks the native frames of the calling thread: from the code that called a hook up to the interpreter's innermost
// loop. Under the recorder's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "unwind/cfi.h"
#include "unwind/modules.h"
#include "unwind/path.h"
#include "unwind/readable_stack.h"
#include "unwind/rule_table.h"

namespace hiwater::unwind {

// How a walk ended.
enum class End : std::uint32_t {
    loop,     // at the interpreter's loop
    root,     // at the thread's first function
    unknown,  // at a frame that has no rule, or whose words cannot be read
    limit,    // after kMostFrames
};

// A frame as a walk found it, with where it read what it needed to leave it.
struct Frame {
    std::uintptr_t address, stack_pointer, frame_pointer;
    const std::uintptr_t* caller_pointer_at;  // the caller's frame pointer; null: it is this frame's
    const std::uintptr_t* caller_stack_at;    // the caller's stack pointer; null: it follows from the two above
    std::uint32_t node;                       // for whoever numbers frames
};

// The last walk of a thread. The frames lie at the end of their room, so that those that stay need not be moved.
struct Frames {
    static constexpr std::uint32_t kMost = 256;

    std::uint32_t count() const noexcept { return kMost - first; }
    std::uintptr_t address(std::uint32_t i) const noexcept { return at[first + i].address; }  // innermost first
    void forget() noexcept {
        first = same_from = kMost;
        end = End::unknown;
    }

    Frame
        at[kMost + 1];  // from `first` on, innermost first; the last one is the interpreter's loop, if the walk met it
    Frame fresh[kMost + 1];          // those that are new, for the walk alone
    std::uint32_t first, same_from;  // from the latter on, all is as it was at the walk before
    End end;
    std::uint32_t unloadings;  // that the walk knew of
    ReadableStack stack;

private:
    friend class Unwinder;
    bool stands_from(std::uint32_t i) const noexcept;
    void join(std::uint32_t fresh_count) noexcept;
};

// Something that the innermost of the interpreter's loops keeps in its own C frame; null where the thread runs none.
struct LoopAnchor {
    const void* (*find)(void* context);
    void* context;
};

struct Range {
    std::uintptr_t start = 0, end = 0;
    bool contains(std::uintptr_t address) const noexcept { return address >= start && address < end; }
};

// What a recording of native frames is told. `interpreter`: its code, `own`: the recorder's. Of every `check_each`
// walks one is compared with _Unwind_Backtrace; 0: none.
struct Scope {
    bool is_wanted = false;
    Range interpreter, own;
    std::uint32_t check_each = 0;
};

// Figures of all walks, for the tests and for whoever measures.
struct Figures {
    std::uint64_t walks, frames, unknown, limit, by_pointer_rules, checked, mismatches;
};

// A library is about to be unloaded, or was: what was known of any may be wrong. Any thread, any time.
void note_unloading() noexcept;
extern std::atomic<std::uint32_t> g_unloadings;

class Unwinder {
public:
    void begin(const Scope& scope) noexcept;
    void forget() noexcept;
    void forget_in_child() noexcept;

    // Whoever calls this is the innermost frame that is considered.
    [[gnu::noinline]] void walk(const LoopAnchor& anchor, Frames* frames);
    // From a frame that called a hook and is not the recorder's.
    void walk_from(const Frame& first, const LoopAnchor& anchor, Frames* frames);

    // What the last walk depended on. False where it did not end at the loop, or depended on more than a path can have.
    [[gnu::cold, gnu::noinline]] bool describe(std::uintptr_t address, std::uintptr_t stack_pointer, Frames* frames,
                                               Path* path) noexcept;
    // For checks: a path led to another stack than a walk.
    void note_wrong_path() noexcept { ++figures_.mismatches; }
    bool are_walks_checked() const noexcept { return scope_.check_each != 0; }

    // Whether an address is in the recorder's own code: further up, too, where a hook called the program.
    bool is_own(std::uintptr_t address) const noexcept { return scope_.own.contains(address); }
    // The module of a return address; null where it is in none.
    Module* module_of(std::uintptr_t return_address) { return modules_.at(return_address - 1); }
    // Whether the instruction before an address is a call, as before each return address. It may be of anything.
    [[gnu::cold]] static bool follows_call(std::uintptr_t address) noexcept;
    // Moves when a library was unloaded: then addresses may have another meaning.
    std::uint32_t unloadings() const noexcept { return unloadings_; }
    const Figures& figures() const noexcept { return figures_; }
    std::size_t rules() const noexcept { return rules_.size(); }

private:
    // The recorder's own frames under a walk: few sequences of functions lead to one. Their tables know all by the
    // stack pointer alone, so the same return addresses at the same distances are the same frames.
    struct OwnPath {
        static constexpr std::uint32_t kMost = 12;
        std::uint32_t count;
        std::uint32_t distance[kMost];  // of each caller's stack pointer from that of the walk
        std::uintptr_t caller[kMost];   // its address; the last one is the program's, and not compared
        static constexpr std::uint32_t kInRegister = UINT32_MAX;
        std::uint32_t pointer_at = kInRegister;  // distance of the word with the last caller's frame pointer
    };
    static constexpr std::uint32_t kOwnPaths = 16;

    static bool leave(const Rule& rule, ReadableStack& stack, Frame* frame, Frame* caller) noexcept;
    [[gnu::cold, gnu::noinline]] Rule learn(ReadableStack& stack, const LoopAnchor& anchor, const Frame& frame);
    bool leave_own(const Frame& start, ReadableStack& stack, Frame* first) noexcept;
    [[gnu::cold, gnu::noinline]] bool walk_own(const Frame& start, ReadableStack& stack, Frame* first);
    bool begin_walk(std::uintptr_t stack_pointer, Frames* frames) noexcept;
    void walk_fresh(const LoopAnchor& anchor, Frames* frames, std::uintptr_t start);
    End go_up(const LoopAnchor& anchor, Frames* frames);
    [[gnu::cold, gnu::noinline]] void check(const Frames& walked, std::uintptr_t start) noexcept;
    void forget_if_unloaded() noexcept;

    RuleTable rules_;
    Modules modules_;
    RuleReader reader_;
    Scope scope_;
    std::uint32_t unloadings_ = 0;
    std::uint32_t own_paths_ = 0;
    OwnPath own_path_[kOwnPaths] = {};
    Figures figures_{};
};

}  // namespace hiwater::unwind
