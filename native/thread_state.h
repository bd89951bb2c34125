// What the recorder keeps for each thread: its last walk, small caches that only it reads, and where its stacks hang.
#pragma once

#include <cstdint>

#include "capture/format.h"
#include "frames/frames.h"

namespace hiwater {

// A code object that is being destroyed: its texts may be gone while its frame can still be seen.
struct DyingCode {
    const void* code;
    DyingCode* outer;
};

struct Thread {
    static constexpr std::uint32_t kInternal = 1;  // slot flag: hiwater's own frame

    struct Edge {  // (parent node, instruction) -> node
        const void* instr;
        std::uint32_t parent, node, flags, epoch;
    };
    struct OpenLedger {  // (node, kind) -> ledger
        std::uint32_t node, kind, ledger, session;
    };
    static constexpr std::uint32_t kEdges = 1024, kLedgers = 512;

    hw_memo memo;
    std::uint32_t epoch;        // of the caches; see Recorder::epoch_
    std::uint32_t session;      // recording the node numbers belong to
    std::uint32_t base;         // node that the outermost frame hangs under
    std::uint32_t root;         // node of the thread itself
    std::uint32_t top_depth;    // depth and node the ledgers below belong to
    std::uint32_t top_node;
    std::uint32_t top_flags;
    std::uint32_t top_ledger[capture::kKinds];
    std::uintptr_t last_block;  // of this thread's last allocation
    char name[64];
    bool named_by_program;
    Thread* next;
    Edge edges[kEdges];
    OpenLedger ledgers[kLedgers];
};

// One small block of static TLS: a dlopened library may use little of it.
struct ThreadLocal {
    Thread* thread;
    DyingCode* dying;
    std::uint32_t busy;       // inside the recorder: our own memory, not the program's
    std::uint32_t covered;    // inside an allocator whose block its caller records
    std::uint32_t exit_node;  // base of a thread whose state has been given back; its last blocks hang here
    bool exiting;
};

extern constinit thread_local ThreadLocal tls __attribute__((tls_model("initial-exec")));

class BusyGuard {
public:
    BusyGuard() noexcept { ++tls.busy; }
    ~BusyGuard() { --tls.busy; }
    BusyGuard(const BusyGuard&) = delete;
    BusyGuard& operator=(const BusyGuard&) = delete;
};

}  // namespace hiwater
