// The capture file, byte for byte. The one place that says what a capture holds.
//
// A capture is the engine's own memory: a file mapped into the recorded process. It is valid after every single store,
// so a process that is killed leaves a readable capture, and another process may read one that is still being written.
//
//   file    = header, schema text (JSON), then extents of kExtentBytes each
//   extent  = a run of records of one table; the extent directory says of which, and its place in that table. A record
//             never lies across two extents: what is left over at an extent's end is empty.
//   table   = append-only records of fixed size; `table_count[id]` is stored after the record is complete
//
// The schema text names every table and field with offset and type, so a reader builds its record types from the file
// itself. Versions: a reader refuses any other `version` than its own; within a version, tables and fields are only
// ever added.
//
// Words
//   block       one live allocation
//   node        a call path: parent node + code + line; node 0 is "nothing"
//   account     the bytes and blocks of one (node, kind, whether sampled)
//   kind        the sort of memory; only the first five count as allocated
//   slice       an interval with a peak of its own
//
// What an account held at the peak of the open slice is saved lazily, at the account's next change:
//   at_slice_peak(account) = account.generation == header.generation ? account.saved_* : account.live_*
// What it held at the peak of the whole recording:
//   epoch = header.epoch[header.epoch_index]
//   header.slice_peak_bytes > epoch.peak_bytes ? at_slice_peak(account) : account_peak.peak_*
// Always: sum over counted kinds of at_slice_peak == header.slice_peak_bytes, and of live == header.live_bytes (except
// for one event in flight).
#pragma once

#include <cstddef>
#include <cstdint>

namespace hiwater::capture {

inline constexpr char kMagic[8] = {'\x89', 'H', 'I', 'W', '\r', '\n', '\x1a', '\n'};
inline constexpr std::uint32_t kVersion = 3;
// Of a capture with native frames, which readers of the former would take for Python's.
inline constexpr std::uint32_t kNativeVersion = 5;
constexpr bool is_known(std::uint32_t version) noexcept { return version == kVersion || version == kNativeVersion; }
inline constexpr std::uint64_t kExtentBytes = 128 * 1024;
inline constexpr std::uint64_t kHeaderBytes = 4096;
inline constexpr std::uint64_t kSchemaBytes = 12 * 1024;
inline constexpr std::uint32_t kMaxExtents = 28 * 1024;  // 3.5 GiB of records
inline constexpr std::uint64_t kDirectoryOffset = kHeaderBytes + kSchemaBytes;
inline constexpr std::uint64_t kFirstExtentOffset = 256 * 1024;
static_assert(kDirectoryOffset + kMaxExtents * sizeof(std::uint32_t) <= kFirstExtentOffset);

// Kinds of memory. The first five are "allocated" and make up live and peak; the others are listed and in no sum.
enum class Kind : std::uint32_t {
    python = 0,   // objects and buffers from CPython's object and mem allocators, requested bytes
    native = 1,   // malloc and its family, requested bytes
    mapping = 2,  // anonymous private mappings that can be used
    device = 3,   // memory of an accelerator
    shared =
        4,     // shared memory that this process made: MAP_SHARED | MAP_ANONYMOUS, memfd, shm, System V; each page once
    file = 5,  // file-backed mappings
    attached = 6,  // shared memory that this process was not seen to make
    reserved = 7,  // address space only: PROT_NONE
    slack = 8,     // pymalloc's arenas, which hold the python kind
};
inline constexpr std::uint32_t kKinds = 9;
inline constexpr std::uint32_t kCountedKinds = 5;
constexpr bool is_counted(Kind kind) noexcept { return static_cast<std::uint32_t>(kind) < kCountedKinds; }

enum class Table : std::uint32_t {
    string_bytes,
    strings,
    codes,
    nodes,
    accounts,
    account_peaks,
    slices,
    slice_entries,
    timeline,
    facts,
    markers,
    residency,
    large_blocks,
    pressure,
    devices,
    device_samples,
    device_terms,
    scopes,
    live_snapshots,
    holder_searches,
    holder_paths,
    holder_blocks,
    holder_references,
    relatives,
    modules,
    count_
};
inline constexpr std::uint32_t kTables = static_cast<std::uint32_t>(Table::count_);

struct StringRecord {
    std::uint64_t offset;  // into string_bytes
    std::uint32_t length;  // bytes of UTF-8
    std::uint32_t reserved;
};

enum class CodeKind : std::uint32_t {
    python = 0,         // a Python code object
    thread = 1,         // root of a thread's stacks; `function` is the thread's name
    native_thread = 2,  // the [thread] frame that native threads' blocks hang under
    label = 3,          // a note below the stack, such as the file of a mapping
    wait = 4,    // below a stack on which no line is the program's own: where the thread stood that waits for it, with
                 // its line
    native = 5,  // a module of native code, `first_line` in the table of modules; a node's `line` is then the return
                 // address minus the module's bias
    native_stack = 6,  // the native frames of a stack, below its Python ones: a node's `line` is the node of the
                       // innermost. Those nodes are below one of this kind, without a parent and a line
};

// Whose code it is. Decided once, when the code is interned (stacks/ownership.h).
enum class Owner : std::uint16_t {
    library = 0,  // also the interpreter, and what a library generated: its bytes belong to the line that called it
    own = 1,      // the user's
    run = 2,      // of the package that is run, which was installed: the user's where no line above it is `own`
    imports = 3,  // the import system
};

struct CodeRecord {
    std::uint32_t function;  // string: qualified name
    std::uint32_t file;      // string
    std::uint32_t first_line;
    std::uint16_t kind;   // CodeKind
    std::uint16_t owner;  // Owner
};

struct NodeRecord {
    std::uint32_t parent;  // node; 0 for the root of a thread
    std::uint32_t code;
    std::uint32_t line;
    std::uint32_t reserved;
};

struct alignas(64) AccountRecord {
    std::int64_t live_bytes;
    std::int64_t live_blocks;
    std::int64_t saved_bytes;  // at the slice peak of `generation`
    std::int64_t saved_blocks;
    std::uint64_t generation;
    std::uint64_t total_bytes;  // allocated over the whole recording
    std::uint64_t total_blocks;
    std::uint32_t node;
    std::uint16_t kind;     // Kind
    std::uint16_t sampled;  // 1: of sampled blocks, each with its weight; 0: every block, exactly
};
static_assert(sizeof(AccountRecord) == 64);

struct AccountPeakRecord {    // same index as its account
    std::int64_t peak_bytes;  // at the peak of all closed slices
    std::int64_t peak_blocks;
    std::int64_t entered_bytes;  // last value written to slice_entries
    std::uint64_t temporaries;   // blocks freed before their thread's next allocation
};
static_assert(sizeof(AccountPeakRecord) == 32);

struct SliceRecord {
    std::uint64_t start_ns, end_ns;  // since header.started_ns
    std::uint64_t peak_ns;
    std::int64_t peak_bytes, peak_blocks;
    std::uint64_t first_entry, entry_count;  // into slice_entries
    std::int64_t unlisted_bytes;             // most by which any one account's figure may be out of date in this slice
};

// The value of one account at a slice's peak. Only accounts that changed since the last slice are listed: replay from
// slice 0.
struct SliceEntryRecord {
    std::uint32_t account;
    std::uint32_t blocks;
    std::int64_t bytes;
};

struct TimelineRecord {
    std::uint64_t at_ns;  // since header.started_ns
    std::int64_t resident_bytes;
    std::int64_t live_bytes[kKinds];  // by kind
    std::uint64_t overhead_bytes;     // of hiwater, part of resident_bytes
    std::int64_t mapped_bytes;        // of resident_bytes, pages of files and of shared memory
};

struct FactRecord {
    std::uint32_t key, value;  // strings
};

// In a sampled recording blocks below header.sample_bytes are sampled as native/heap/sampling.h says. The variance of a
// sum over accounts is at most header.sample_bytes times the sum over those that are `sampled`.

// An instant slice (start_ns == end_ns == peak_ns) is what was live at that moment: taken when memory was refused.
enum class MarkerKind : std::uint32_t { fork = 1, out_of_memory = 2, exec = 3, gc = 4, named = 5 };

struct MarkerRecord {
    std::uint64_t at_ns;
    std::uint64_t value;  // fork: the child's pid; out_of_memory: bytes asked for; gc: full collections since the last
                          // one of these markers; named: string
    std::uint32_t kind;   // MarkerKind
    std::uint32_t node;
};

// Residency snapshots: one record for each part of resident memory, all parts of a snapshot with one time. The parts of
// a snapshot add up to what was resident then. Snapshots are taken when resident memory reaches new heights, as far as
// time allows, and at the end.
struct ResidencyRecord {
    std::uint64_t at_ns;  // since header.started_ns
    std::int64_t resident_bytes;
    std::int64_t untouched_bytes;  // address space of this part that was never written
    std::uint32_t part;            // string
    std::uint32_t reserved;
};

// The largest blocks, anonymous mappings and mappings of shared memory of a snapshot, with how much of them was in RAM.
struct LargeBlockRecord {
    std::uint64_t at_ns;
    std::int64_t bytes, touched_bytes;
    std::uint32_t node;         // that allocated it; 0 where that was before the recording, or by nobody we see
    std::uint32_t from_malloc;  // 1: a block that malloc mapped for itself; 0: a mapping
};

// How near the process was to what limits it. -1: no such limit, or not known. The last record is kept up to date in
// place, so that a process that is killed leaves what it was a moment before.
struct PressureRecord {
    std::uint64_t at_ns;  // since header.started_ns
    std::int64_t address_space_bytes,
        address_space_limit;                  // RLIMIT_AS; hiwater's own pages are in neither when --limit set it
    std::int64_t cgroup_bytes, cgroup_limit;  // the group's usage, others in it included, and its nearest limit
    std::int64_t available_bytes;             // MemAvailable of the machine
    // At the last reading of smaps_rollup, for a process that was forked or has forked: RSS minus PSS, which is what
    // others count of the pages that it shares with them; and the pages that it shares with nobody. -1: there is none
    // since the last fork.
    std::int64_t shared_excess_bytes, private_bytes;
    std::int64_t mapped_excess_bytes;  // of the excess, that of pages of files and of shared memory
};

// Of the processes of a run, read by the one that began it, itself among them: resident memory, RSS minus PSS, and the
// pages that it shares; and of the first two what pages of files and of shared memory are.
// Where there was no time to read them: process 0, and as the latter the bytes that they copied since the last reading
// at most, of those that they shared.
struct RelativeRecord {
    std::uint64_t at_ns;  // since header.started_ns
    std::int64_t resident_bytes, shared_excess_bytes, shared_bytes;
    std::int64_t mapped_bytes, mapped_excess_bytes;
    std::uint32_t pid;
    std::uint32_t reserved;
};

// A file of native code that was mapped for execution, in which return addresses were met. Record 0 is none.
struct ModuleRecord {
    std::uint64_t start, end;  // where it was mapped
    std::uint64_t bias;        // what was added to the addresses in the file
    std::uint32_t path;        // string
    std::uint32_t identity;    // string: the build-id in hexadecimal, or "headers:" and a sum of the file's headers
    std::uint32_t code;
    std::uint32_t reserved;
};

// An accelerator that the program used, as one library counts it. -1: not measured. A record is kept up to date in
// place, so that a process that is killed leaves its peaks.
struct DeviceRecord {
    std::uint32_t name, backend, source,
        note;                  // strings: "cuda:0", "torch", where the figures come from, what a reader must know
    std::int64_t limit_bytes;  // what the device, or the library's share of it, can hold
    std::int64_t peak_allocated_bytes, peak_reserved_bytes, peak_used_bytes;
    std::uint64_t peak_at_ns;  // the sample that ends the interval in which the allocated peak was
    std::uint32_t exact;       // 1: the first two peaks miss nothing
    std::uint32_t reserved;
};

// Allocated: what the library handed out. Reserved: what it holds. Used: what the driver counts for this process. The
// first two have, beside the figure at `at_ns`, the highest since the device's record before.
struct DeviceSampleRecord {
    std::uint64_t at_ns;  // since header.started_ns
    std::int64_t allocated_bytes, allocated_peak_bytes, reserved_bytes, reserved_peak_bytes, used_bytes;
    std::uint32_t device;
    std::uint32_t reserved;
};

// What the memory of a device consists of: one record for each term, all terms of a snapshot with one time.
struct DeviceTermRecord {
    std::uint64_t at_ns;
    std::int64_t bytes;  // -1: not known
    std::uint32_t device;
    std::uint32_t term;  // string
};

// A phase that the program named. A record is written at its start, with end_ns 0, and completed at its end. At most
// kMostScopes are kept: a later phase takes the record of the oldest that has ended.
struct ScopeRecord {
    std::uint32_t name;  // string
    std::uint32_t pid, thread_id, depth;
    std::uint64_t start_ns, end_ns;
    std::int64_t start_bytes, end_bytes, peak_bytes;  // resident: -1, not measured
    std::int64_t allocated_start_bytes, allocated_end_bytes, allocated_peak_bytes;
};
inline constexpr std::uint32_t kMostScopes = 10'000, kMostNamedMarkers = 10'000;

// What was live when the program set a named marker or a phase ended: the values of slice number `slice`, an instant
// slice. Blocks allocated after this moment are in accounts that were opened after it, so an account tells when its
// blocks were allocated: between two of these moments. Of one name, there are none at the first two, then one at each
// up to kDenseSnapshots, and then one whenever their number has grown by a sixteenth.
struct LiveSnapshotRecord {
    std::uint64_t at_ns;  // since header.started_ns
    std::uint64_t slice;
    std::uint64_t number;  // how many moments of this name there were, with this one
    std::uint32_t
        first_account;   // that may hold blocks allocated later; 0: there were too many accounts to open new ones
    std::uint32_t name;  // string
};
inline constexpr std::uint64_t kDenseSnapshots = 64, kMostSnapshots = 2'000;
// No new accounts are opened for old call paths when there are so many, which take 24 MiB of the capture.
inline constexpr std::uint32_t kMostRenewedAccounts = 256 * 1024;

// A search for what holds the interpreter's objects (native/holders/). Its rows of the three tables below lie together,
// from first_… on, and number its paths from 1.
struct HolderSearchRecord {
    std::uint64_t at_ns;                  // since header.started_ns
    std::uint64_t objects, references;    // all there were
    std::uint64_t bytes, all_paths;       // of all objects and their buffers; paths before the smallest were left out
    std::uint64_t pause_ns, duration_ns;  // the program stood still; until the search was done
    std::uint32_t first_path, paths, first_block, blocks, first_reference, references_between;
    std::uint32_t target;   // the path of the object that was asked for; 0: none was, or it was not found
    std::uint32_t name;     // string: what the search was for
    std::uint32_t failure;  // string: why nothing was found; 0: it was
    std::uint32_t request;  // Header::search_request that it answers; 0: the program itself asked
};
inline constexpr std::uint64_t kMostHolderSearches = 100;

struct HolderPathRecord {
    std::uint32_t parent;       // path; 0: none
    std::uint32_t dominator;    // the path without which nothing holds these objects; 0: none, or not listed
    std::uint32_t kind;         // hw_label_kind (holders/python_heap.h): how the parent's objects refer to these
    std::uint32_t shared;       // 1: its objects are referred to more than once
    std::uint32_t label, type;  // strings
    std::uint64_t objects, bytes, retained_bytes;
};

struct HolderBlockRecord {  // of the objects of a path and their buffers
    std::uint32_t path;     // 0: no object was found to which they belong
    std::uint32_t account;  // 0: allocated before the recording, or not in the sample; the bytes follow from the type
    std::uint64_t blocks, bytes;
};

struct HolderReferenceRecord {  // between objects of two paths: those with most references to a path
    std::uint32_t from, to;
    std::uint64_t references;
};

struct EpochRecord {  // about all closed slices; two copies, so that a new one is put in place by one store
    std::int64_t peak_bytes, peak_blocks;
    std::uint64_t peak_ns;
    std::uint64_t slice_start_ns;  // of the open slice
};

// What limits a process's memory.
enum class LimitKind : std::uint32_t { none = 0, address_space = 1, cgroup = 2, machine = 3 };

enum class State : std::uint32_t {
    recording = 1,  // with ended_ns: a handler of a signal ended the process in the middle of an event
    ended = 2,      // stopped, or the program ended in a way we saw
    failed = 3,     // our own fault: recording stopped early, see stop_reason
};

// How the process ended, where more is known than its exit code.
enum class EndedBy : std::uint32_t {
    unknown = 0,
    signal = 1,          // header.end_signal, left to its default
    stack_overflow = 2,  // SIGSEGV at the end of a thread's stack
    fatal_error = 3,     // of the interpreter, which calls abort()
    exit_call = 4,       // _exit(), which runs no callbacks
    exec = 5,
};

struct Header {
    char magic[8];
    std::uint32_t version;
    std::uint32_t header_bytes;
    std::uint64_t extent_bytes;
    std::uint64_t schema_offset, schema_bytes;
    std::uint64_t directory_offset, first_extent_offset;
    std::uint32_t max_extents;
    std::uint32_t extents_used;
    // about the process
    std::uint32_t state;  // State
    std::uint32_t pid;
    std::uint64_t process_start_ticks;  // field 22 of /proc/pid/stat: tells a reused pid from this one
    char boot_id[40];
    std::uint64_t started_unix_ns, started_ns;  // wall clock; CLOCK_MONOTONIC
    std::uint64_t heartbeat_ns;                 // since started_ns; last sign of life
    std::uint64_t ended_ns;                     // since started_ns; 0 while recording
    std::int32_t exit_code;                     // -1 while unknown
    std::uint32_t counted_kinds;
    std::uint64_t sample_bytes;  // 0: every block
    std::uint64_t lost_events;
    std::uint32_t stop_reason;  // string
    std::uint32_t table_total;
    // resident memory of the process
    std::int64_t resident_start_bytes, resident_last_bytes, resident_peak_bytes;
    std::int64_t resident_error_bytes;  // most by which the kernel's peak may be off
    std::uint32_t resident_exact;       // 1: the kernel's peak, reset at the start; 0: highest sample
    std::uint32_t epoch_index;
    EpochRecord epoch[2];
    // Resident pages of hiwater itself and of the capture, already in resident_*, at the moment of program_peak_bytes.
    std::uint64_t overhead_bytes;
    std::uint64_t table_count[32];  // more than there are tables, so that one more moves nothing
    // In a sampled recording: what was allocated in all, by every thread, in kinds python and native, counted block by
    // block.
    std::uint64_t exact_total_bytes, exact_total_blocks;
    std::uint64_t inherited_bytes;  // live in the parent at the fork, or inherited by it; in no other figure
    // The limit that was nearest a moment before the end, so that the next run can say it without reading tables.
    std::uint64_t nearest_used_bytes, nearest_limit_bytes;
    std::uint32_t nearest_limit_kind;  // LimitKind
    std::uint32_t ended_by;            // EndedBy
    std::uint64_t
        snapshot_ns;  // of a copy that was made while the recording continued: when, since started_ns; otherwise 0
    std::uint64_t named_markers, scopes;  // that the program made so far, with those that are not kept
    std::uint64_t
        unknown_frees;  // of blocks from before the recording; an exact recording counts them, a sampled one does not
    std::uint64_t end_signal;  // that ended the process; 0: none, or not known
    std::uint32_t
        refused_children;  // of forks, or executed by them, that could not be recorded or named in the run's index
    std::int32_t refused_error;  // errno of the last one
    // Written by another process: it asks for a search for holders with a number that was not asked for before. The
    // recorder answers.
    std::uint32_t search_request;
    std::uint32_t search_answer;  // the number of the last request that was answered
    std::int32_t search_error;    // of that answer, an errno value; 0: it is in the table holder_searches; EINPROGRESS:
                                  // it has begun
    std::uint32_t reserved;
    std::int64_t shared_excess_bytes;   // of the last record of `pressure` that has it
    std::uint64_t overhead_last_bytes;  // as overhead_bytes, at the moment of resident_last_bytes
    // The highest that resident memory was without the overhead: at least the first, and no more above it than the
    // second. The kernel's own error comes on top.
    std::int64_t program_peak_bytes, program_peak_error_bytes;
    // changes with every event
    alignas(64) std::int64_t live_bytes;  // counted kinds
    std::int64_t live_blocks;
    std::int64_t slice_peak_bytes;  // of the open slice
    std::int64_t slice_peak_blocks;
    std::uint64_t generation;
    std::uint64_t slice_peak_ns;  // to the timeline's tick
    std::int64_t kind_live_bytes[kKinds];
};
static_assert(sizeof(Header) <= kHeaderBytes);

}  // namespace hiwater::capture
