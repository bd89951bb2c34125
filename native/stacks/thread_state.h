// What the recorder keeps for each thread: its last walk, small caches that only it reads, and where its stacks hang.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "base/errno_kept.h"
#include "base/static_tls.h"
#include "base/thread_id.h"
#include "base/uncopied.h"
#include "lock/lock.h"
#include "stacks/frames.h"
#include "stacks/waits.h"
#include "heap/sampling.h"
#include "accounting/thread_accounts.h"

namespace hiwater {

// A code object that is being destroyed: its texts may be gone while its frame can still be seen.
struct DyingCode {
    const void* code;
    DyingCode* outer;
};

// A code object's address may be used again by another. So each page of code has a generation that moves when a code
// object in it dies, and what was remembered of its instructions no longer matches. Pages share generations by their
// low bits: harmless. Relaxed: it moves under the lock, and a thread has new code from the one that made it.
inline constexpr std::uint32_t kCodePages = 4096;
extern std::atomic<std::uint32_t> g_code_generation[kCodePages];
inline std::atomic<std::uint32_t>& code_generation(const void* instr) noexcept {
    return g_code_generation[(reinterpret_cast<std::uintptr_t>(instr) >> 12) % kCodePages];
}

// For a sampled recording: bytes up to the next sampled byte of each stream, and how many blocks have been allocated
// whose number does not follow from those bytes. Only their thread writes them. Relaxed: others read them as figures.
struct SampleStreams {
    std::atomic<std::int64_t> left[sampling::kStreams];
    std::atomic<std::uint64_t> blocks;
};
extern SampleStreams g_no_streams;   // of threads whose streams have not begun: always at the next sampled byte
extern SampleStreams g_own_streams;  // of hiwater's own work, which is not counted: never there

// Where a thread's name comes from. One that means more is not replaced by one that means less.
enum class NameOf : std::uint8_t {
    nobody,          // "thread COMMAND": the kernel's name, which the thread was born with
    python_default,  // "Thread-1 (load)", "MainThread"
    system,          // the program gave it by prctl or pthread_setname_np
    python,          // the program gave it to its threading.Thread
};

struct ThreadName {
    char text[64];
    NameOf of;

    // Takes a name unless the present one means more. Returns whether it is another than before.
    bool take(const char* name, NameOf from) noexcept;
};

// By their hashes: the series that a thread's name was of when it started, and that its last one is of; see
// ThreadNames. 0: none.
struct ThreadSeries {
    std::uint64_t first, last;
};

struct NativeStack;

struct Thread {
    // Of a slot: its node, and whether it is hiwater's own frame.
    static constexpr std::uint32_t kInternal = 1u << 31;
    static constexpr std::uint32_t kNoEpoch = UINT32_MAX;  // that no recording has: 0 is what `plain_epoch` may be

    // (parent, instruction) -> node, and the accounts of the two kinds that come from every line. What an event needs
    // of a stack whose top moved is in these 32 bytes: twice as many would be twice as much of the cache.
    struct alignas(32) Edge {
        const void* instr;
        std::uint64_t key;         // generation of the instruction's page; place of the parent
        std::uint32_t place;       // as a slot's
        std::uint32_t account[2];  // python, native; 0: not opened yet

        void forget_accounts() noexcept { account[0] = account[1] = 0; }

        std::uint32_t node() const noexcept { return place & ~kInternal; }
        bool is_internal() const noexcept { return (place & kInternal) != 0; }
    };
    static constexpr unsigned kEdgeBits = 12, kEdgeParts = 32;
    static constexpr std::size_t kEdgesOfPart = (1 << kEdgeBits) / kEdgeParts;

    static std::uint64_t key_under(std::uint32_t parent, const void* instr) noexcept {
        return static_cast<std::uint64_t>(code_generation(instr).load(std::memory_order_relaxed)) << 32 | parent;
    }
    Edge* edge_of(const void* instr, std::uint64_t key) noexcept {
        const std::uint64_t mixed = (key ^ reinterpret_cast<std::uintptr_t>(instr) << 16) * 0x9e3779b97f4a7c15ULL;
        return &edges[mixed >> (64 - kEdgeBits) & edge_mask];
    }
    // A program may have hundreds of threads that meet few lines each: they use a page of the edges, others twice as
    // many whenever half of them were filled.
    void begin_edges(bool are_all_used) noexcept {
        edge_mask = static_cast<std::uint32_t>(are_all_used ? std::size(edges) : kEdgesOfPart) - 1;
    }
    void note_filled(const Edge* edge) noexcept {
        filled_parts |= 1u << static_cast<std::size_t>(edge - edges) / kEdgesOfPart;
        if (++filled_edges > edge_mask / 2 && edge_mask + 1 != std::size(edges)) edge_mask = 2 * edge_mask + 1;
    }
    template <typename Visit>  // visit(edges of the part)
    void each_filled_part(const Visit& visit) noexcept {
        for (std::size_t part = 0; part < kEdgeParts; ++part)
            if ((filled_parts >> part & 1) != 0) visit(std::span<Edge>(&edges[part * kEdgesOfPart], kEdgesOfPart));
    }
    void forget_edges() noexcept;
    void forget_accounts() noexcept;
    // For another thread; `ticket` stays, as the lock may know it.
    void clear() noexcept;

    // Sets `top` for a top frame at `instr`, as hw_frames_are_settled() returned it. False where the thread has not met
    // it there lately.
    [[gnu::always_inline]] bool stand_at(const void* instr) noexcept {
        hw_slot* const slot = memo.settled;
        if (slot->instr == instr) return true;
        const auto parent = static_cast<std::uint32_t>(top->key);
        const std::uint64_t key = key_under(parent, instr);
        Edge* const edge = edge_of(instr, key);
        if (edge->instr != instr || edge->key != key) return false;
        slot->instr = instr;
        slot->place = edge->place;
        top = edge;
        return true;
    }
    // The slot is a frame of hiwater's own. Where no frame of the program is below it, the frames up to it belong to no
    // stack, and walks need not check them.
    [[gnu::noinline, gnu::cold]] void note_own(const hw_slot* slot) noexcept {
        if ((slot->place & ~kInternal) == base) memo.floor = static_cast<std::uint32_t>(slot - memo.slots) + 1;
    }
    // Gives places to the slots from `changed` up and settles the stack, which has one. Where the thread has not met a
    // slot lately, meet(slot, key, edge) fills the edge, or returns false: then this returns that slot, and those below
    // have their places.
    template <typename Meet>
    [[gnu::always_inline]] hw_slot* stand_from(hw_slot* changed, const Meet& meet) {
        hw_slot* const end = memo.slots + memo.depth;
        hw_slot* slot = changed != end ? changed : end - 1;  // where frames have only returned, the top is looked up
        std::uint32_t place = slot == memo.slots ? base : slot[-1].place;
        Edge* edge;
        do {
            const std::uint64_t key = key_under(place, slot->instr);
            edge = edge_of(slot->instr, key);
            if ((edge->instr != slot->instr || edge->key != key) && !meet(*slot, key, edge)) [[unlikely]]
                return slot;
            slot->place = place = edge->place;
            if ((place & kInternal) != 0) [[unlikely]]
                note_own(slot);
        } while (++slot != end);
        top = edge;
        hw_frames_settle(&memo);
        return end;
    }

    // A native thread, which hangs under the stack that started it.
    bool is_below_start() const noexcept { return base != root; }

    LockTicket ticket;
    // What follows is of a sampled recording.
    sampling::Random random;
    sampling::Cells cells[sampling::kStreams];
    SampleStreams streams;
    std::uint32_t sampled_session;  // recording the streams belong to
    std::uint32_t own_depth;        // calls of hiwater's own work that this thread is in
    std::int64_t large_bytes;       // allocated in blocks that are always recorded
    Thread* next_of_all;
    hw_memo memo;
    std::uint32_t epoch;    // of the caches; see Recorder::epoch_
    std::uint32_t session;  // recording the node numbers belong to
    std::uint32_t base;     // node that the outermost frame hangs under
    std::uint32_t root;     // node of the thread itself
    Edge* top;              // the stack that `memo` is settled on: one of `edges`, or `no_frames` where it has no depth
    Edge no_frames;         // the thread outside any Python frame
    std::uintptr_t last_block;  // of this thread's last allocation
    ThreadId id;                // 0 for the state of a thread that has ended
    Starters starters;          // none where it is not known who started it
    std::uint64_t asked_ns;     // when it was last found where that one waits
    bool is_main;
    bool has_unowned;         // it allocated where another thread's line may count
    WaitedAt waits_at;        // where the thread stood that waits for this one, as last seen
    std::uint32_t wait_code;  // of kind `wait`, for that line; 0: none
    ThreadName name;
    ThreadSeries series;
    ThreadSeries ended_series;  // those of the thread that had this state before
    std::uint32_t interval;     // of the accounts in `edges`; see Accounts::begin_interval()
    NativeStack* native;        // where native frames are recorded
    bool is_to_move;            // to a node with its present name, at its next event: others were at the one it has
    Thread* next;
    static constexpr std::uint32_t kLineCursors = 32;
    hw_line_cursor line_cursors[kLineCursors];
    std::uint32_t edge_mask;     // the edges that are used lie below it, or there
    std::uint32_t filled_edges;  // how often one was
    std::uint32_t filled_parts;  // of `edges`, since they were forgotten
    Edge edges[1 << kEdgeBits];
    ThreadAccounts accounts;  // empty once the thread has ended

    static Thread& of(LockTicket& ticket) noexcept { return reinterpret_cast<Thread&>(ticket); }
};
static_assert(offsetof(Thread, ticket) == 0);

// Of threads that have no state yet, and of those inside the recorder: it is never free to enter.
inline constinit LockTicket g_no_ticket{1};

// One small block of static TLS: a dlopened library may use little of it.
struct ThreadLocal {
    Thread* thread = nullptr;
    LockTicket* ready =
        &g_no_ticket;             // of `thread`, where it has one and is not busy: an event asks once for all three
    void renew_ready() noexcept;  // after a change of these
    DyingCode* dying = nullptr;
    std::uint32_t busy = 0;      // inside the recorder: our own memory, not the program's
    std::uint32_t covered = 0;   // inside an allocator whose block its caller records
    std::uintptr_t busy_at = 0;  // where the stack stood as the outermost of either began
    std::uintptr_t covered_at = 0;
    std::uint32_t exit_node = 0;  // base of a thread whose state has been given back; its last blocks hang here
    std::uint32_t exit_session = 0;
    bool exiting = false;
    std::uint8_t unanswered = 0;  // small objects that were allocated while Python is asked: see Recorder::ask_python()
    const void* unknown_free = nullptr;  // the last block that was freed and is in no table
    SampleStreams* streams = &g_no_streams;
};

HIWATER_STATIC_TLS extern constinit thread_local ThreadLocal tls;

inline void ThreadLocal::renew_ready() noexcept {
    ready = busy == 0 && thread != nullptr ? &thread->ticket : &g_no_ticket;
}

// The thread is inside something that can nest: counts the depth, and keeps the stack pointer of the outermost entry. A
// signal handler may run between any two steps, and enter and leave itself: it restores what it found.
template <std::uint32_t ThreadLocal::* kDepth, std::uintptr_t ThreadLocal::* kPlace>
class Inside : Uncopied {
public:
    Inside() noexcept : before_(tls.*kPlace) {
        if (tls.*kDepth == 0) store_stack_pointer(&(tls.*kPlace));
        std::atomic_signal_fence(std::memory_order_seq_cst);
        ++(tls.*kDepth);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if constexpr (kDepth == &ThreadLocal::busy) tls.ready = &g_no_ticket;
    }
    ~Inside() {
        --(tls.*kDepth);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        if constexpr (kDepth == &ThreadLocal::busy) tls.renew_ready();
        tls.*kPlace = before_;
    }

private:
    const std::uintptr_t before_;
};

// Work of the recorder's own. It leaves errno as it was: a wait for the lock may change it, and so may any system call.
class BusyGuard {
    ErrnoKept errno_kept_;
    Inside<&ThreadLocal::busy, &ThreadLocal::busy_at> inside_;
};

// While an allocator works, what it takes from malloc or maps is part of the block that its caller records. Never one
// in another.
using Covered = Inside<&ThreadLocal::covered, &ThreadLocal::covered_at>;

}  // namespace hiwater
