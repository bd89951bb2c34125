// The recorder: receives events from the hooks, finds the stack of each, and keeps the capture up to date.
//
// Subjects that have tables of their own are members: mappings, code objects, names of threads, devices. Blocks and
// stacks are not apart: on the fast path one event reads the thread's stack and changes the table of live blocks and
// the accounts in one section under the lock, without a call (heap/fast_path.h). So their events are functions of this
// class, defined in heap/ and stacks/.
//
// Longer than 400 lines for the same reason: the variants of these events are declared here, each with what it expects
// of the lock.
//
// block: one live allocation, [address, address + bytes).   stack: a node of the call tree.   account: bytes and blocks
// of a stack and kind. A block is removed from the tables before it is really freed: once released, another thread may
// get the same address.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/compare_word.h"
#include "lock/lock.h"
#include "base/own_count.h"
#include "base/process.h"
#include "capture/capture_file.h"
#include "devices/devices.h"
#include "accounting/accounts.h"
#include "stacks/call_tree.h"
#include "stacks/codes.h"
#include "stacks/native_frames.h"
#include "stacks/thread_names.h"
#include "heap/live_table.h"
#include "mappings/mapping_accounts.h"
#include "heap/sample_table.h"
#include "residency/breakdown.h"
#include "session/children.h"
#include "session/give_back.h"
#include "session/last_words.h"
#include "session/options.h"
#include "session/pause.h"
#include "session/program_peak.h"
#include "session/sampler.h"
#include "session/scopes.h"
#include "session/switches.h"
#include "stacks/thread_state.h"

namespace hiwater {

namespace holders {
class Search;
}

class Recorder final : ThreadLocalAccounting {
public:
    static void make() noexcept;

    // --- control; the caller holds the GIL

    // Returns 0 or an errno value. The capture is at path(): another path than the given one where a living process
    // writes to that. `began`: for the child of a fork, a moment before that.
    int start(const StartOptions& options, const process::Moment* began = nullptr);
    const std::string& path() const noexcept { return path_; }
    // Ends the recording; the hooks are out already. `exit_code` -1: unknown. With `carry` the heap's meters continue
    // from its figures. `heap_has_headers`: malloc is the C library's, whose headers show which blocks are free.
    // `is_leaving`: the process ends next, and the kernel takes the tables with it.
    void stop(int exit_code, bool carry, bool heap_has_headers, bool is_leaving = false);
    // Needs no GIL. 0 or an errno value.
    int snapshot(const char* path) noexcept;
    // A window is a stretch of the recording that has whole slices of its own. Returns where it begins, in the
    // recording's time.
    std::uint64_t begin_window() noexcept;
    Accounts::Figures window_peak(std::uint64_t start_ns) noexcept;
    // Ends it: writes a copy of the capture that names the window's interval. 0 or an errno value.
    int write_window(const char* path, std::uint64_t start_ns) noexcept;
    Summary summary();
    bool is_kept_in_memory() noexcept;
    bool is_complete() const noexcept { return is_on() && lost_.load(std::memory_order_relaxed) == 0; }
    std::map<std::string, std::int64_t> counters();
    // Empty, or what is wrong.
    std::string self_check();

    // Ends the recording as a fault of its own would: what was recorded is kept, and the capture contains the reason.
    void give_up(const char* reason) noexcept { fail(reason); }

    bool counts_only() const noexcept { return recording() && only_counters_; }

    // Around work of hiwater's own on this thread: a sampled recording leaves what it allocates out of its exact
    // totals.
    void enter_own_work() noexcept;
    void leave_own_work() noexcept;

    // --- the heap's meters; the caller holds the GIL

    // Bytes and blocks allocated since counting began and not freed; the count continues where the way of counting
    // changes.
    struct Heap {
        std::int64_t live_bytes, live_blocks, python_bytes, native_bytes, mapping_bytes, shared_bytes;
    };
    Heap heap_now() noexcept;
    Accounts::Figures heap_totals() const noexcept { return accounts_.metered(); }
    // For a caller that is about to reset the kernel's peak: the recording in progress, if any, reads the same peak.
    void note_resident_peak_before_reset(std::int64_t peak_bytes) noexcept;
    // Modules of hiwater were loaded during the recording, and take that much.
    void note_loaded_code(std::int64_t bytes) noexcept;
    // What process::maximum_resident() was when the kernel's peak was reset.
    std::int64_t maximum_at_start() const noexcept { return maximum_at_start_; }
    // Highest totals since the last call. The next interval begins now.
    Accounts::HeapPeak read_and_reset_heap_peak() noexcept;
    void stop_peak_reading() noexcept;

    // --- events; any thread, any time

    // Returns the block.
    template <capture::Kind kKind>
    void* on_alloc(void* block, std::size_t bytes) noexcept {
        return sampled() ? record_if_sampled<kKind>(block, bytes) : record<kKind>(block, bytes);
    }
    void on_free(const void* block) noexcept {
        if (!sampled()) {
            forget(block);
        } else if (may_be_sampled(block)) {
            forget_sampled(block);
        }
    }
    // The same in an exact recording: fast_path.h.
    template <capture::Kind kKind, bool kIsSmall = false>  // whether the block is below LiveTable::kLargeBytes
    [[gnu::noinline]] static void* record(void* block, std::size_t bytes) noexcept;
    LiveTable::Region* region_of(const void* block) const noexcept {
        return live_.find(reinterpret_cast<std::uintptr_t>(block));
    }
    template <bool kFreed>
    bool take_small(LiveTable::Region* region, const void* block, Block* taken) noexcept;
    bool forget_small(LiveTable::Region* region, const void* block) noexcept;
    // After forget_small(), or with a region of null. `kFreeIsHooked`: the caller passes blocks from malloc on to the
    // hook of free(), which records them: large ones are left to it.
    template <bool kFreeIsHooked>
    void forget_other(LiveTable::Region* region, const void* block) noexcept;
    void forget(const void* block) noexcept;
    // A reallocation is take, the real call, then on_alloc of the result, or put_back when it failed.
    Block take(const void* block) noexcept {
        if (!sampled()) return take_exact(block);
        return may_be_sampled(block) ? take_sampled(block) : Block{};
    }
    // In sampled mode: whether a block may have been sampled. Most were not.
    bool may_be_sampled(const void* block) const noexcept {
        return samples_.may_hold(reinterpret_cast<std::uintptr_t>(block));
    }
    void put_back(const void* block, Block taken) noexcept;

    // Counts an allocation and returns whether it ends before the next sampled byte of its stream: then it is not
    // recorded.
    static bool passes_unsampled(std::size_t bytes) noexcept {
        SampleStreams& streams = *tls.streams;
        if (bytes > sampling::kLargestEqual) count_one(streams.blocks);
        return take_from(streams.left[sampling::stream_of(bytes)], static_cast<std::int64_t>(bytes));
    }
    // Whether a sampled block could be recorded now.
    static bool may_sample_now() noexcept { return is_on() && !is_inside(); }
    // Whether a sampled object may take kSmallObject bytes: where so few are sampled, that is less than 1 % of what all
    // of them take.
    bool may_take_room() const noexcept { return sample_bytes_ >= 100 * kSmallObject; }
    // Returns the block, so that the caller need not keep it in a register meanwhile.
    void* record_sampled(void* block, std::size_t bytes, capture::Kind kind) noexcept;
    template <capture::Kind kKind>
    [[gnu::always_inline]] void* record_if_sampled(void* block, std::size_t bytes) noexcept {
        return passes_unsampled(bytes) ? block : record_sampled(block, bytes, kKind);
    }

    void on_map(std::uintptr_t start, std::size_t bytes, const NewMapping& mapping) noexcept;
    // This process made an object of shared memory. Leaves errno alone.
    void on_shared_object(const SharedObject& object) noexcept;
    // Takes a range out and remembers it in `undo`; put_back_range() restores it when the real call failed.
    void take_range(std::uintptr_t start, std::size_t bytes, TakenRange* undo) noexcept;
    void put_back_range(const TakenRange& undo) noexcept;
    // What lies from an address on, left in place.
    void find_range(std::uintptr_t start, TakenRange* found) noexcept;
    void on_moved(const TakenRange& taken, std::uintptr_t start, std::size_t bytes) noexcept;
    // An arena of the object allocator: slack, of no stack in particular.
    void on_arena(std::uintptr_t start, std::size_t bytes) noexcept;
    // An arena goes back to the system. Which ones become empty depends on where the few objects lie that stay: another
    // run of the program may keep one more, or one less.
    void note_arena_freed(std::size_t bytes) noexcept;
    // The end of the piece that starts here, or 0.
    std::uintptr_t range_end(std::uintptr_t start) noexcept;
    void on_protect(std::uintptr_t start, std::size_t bytes, std::uint32_t protection) noexcept;
    void on_marker(capture::MarkerKind kind, std::uint64_t value) noexcept;
    // Markers and phases that the program names; the caller holds the GIL. A phase is what begin_scope() returned, 0
    // where nothing is recorded.
    void add_marker(std::string_view name) noexcept;
    void end_intervals() noexcept {
        interval_ns_.store(0, std::memory_order_relaxed);
    }  // no more snapshots at intervals
    std::uint64_t begin_scope(std::string_view name) noexcept;
    void end_scope(std::uint64_t scope) noexcept;
    // A request for memory was refused. Leaves errno alone.
    void on_refused(std::size_t bytes) noexcept;
    void on_code_death(const void* code) noexcept;

    // The node native threads started from here hang under; 0 when not recording.
    std::uint32_t thread_start_node() noexcept;
    void adopt_thread(std::uint32_t node, std::uint32_t session, const Starters& starters,
                      const ThreadName& name) noexcept;
    // A thread has a name from now on, unless the one it has means more (NameOf).
    void name_thread(ThreadId id, const char* name, NameOf from) noexcept;
    std::uint32_t session() const noexcept { return session_; }

    // --- holders
    // Begins a search for what holds the interpreter's objects; the caller holds the GIL. Then, after search.wait(),
    // which needs no GIL, what it found is added to the capture. Both return 0 or an errno value: ENOENT, nothing is
    // recorded; ENOSPC, there is no room for more. `request`: the number of the request from outside that it answers;
    // 0: the program itself asked.
    int begin_search(holders::Search& search) noexcept;
    int end_search(const holders::Search& search, std::string_view name, std::uint32_t request = 0) noexcept;
    // The number of the last request for a search that another process wrote into the capture's header; and the answer
    // to one: an errno value.
    std::uint32_t search_request() const noexcept {
        return __atomic_load_n(&file_.header().search_request, __ATOMIC_ACQUIRE);
    }
    std::uint32_t search_answer() const noexcept { return file_.header().search_answer; }
    void answer_search(std::uint32_t request, int error) noexcept;

    // --- devices; the caller holds the GIL

    // Calls work(devices, now) under the lock; not where nothing is recorded. Where there is no room for a figure, it
    // is left out.
    template <typename Work>
    void on_devices(const Work& work) noexcept {
        if_recorded([&] { work(devices_, now_ns()); });
    }

    // --- periodic work
    // `resident_bytes` -1 where it could not be read; `kernel_peak_bytes` 0 where it was not read this time.
    void tick(std::uint64_t now_ns, const process::Sizes& sizes, std::int64_t kernel_peak_bytes) noexcept;
    std::uint64_t now_ns() const noexcept;
    // How near the process is to what limits it, and what it shares with others.
    void note_pressure(std::uint64_t now, std::int64_t address_space_bytes, const process::Shared& shared) noexcept;
    template <typename Call>
    void each_file_of_limits(const Call& call) noexcept {
        limits_.each_file(call);
    }
    void note_relative(const capture::RelativeRecord& relative) noexcept;
    bool is_group_full() noexcept { return limits_.is_group_full(); }             // for the sampler
    double share_of_limit() const noexcept { return limits_.nearest().share(); }  // of the nearest one, for the sampler
    // Where that is clearly nearer than before: writes the last words and takes a residency snapshot.
    void leave_last_words() noexcept;
    const std::string& last_words_failure() const noexcept { return last_words_.failure(); }
    // `collections`: full garbage collections so far. A marker is added for those since the last call.
    void note_collections(std::int64_t collections) noexcept;
    // A fact that became known after the start, for readers of the capture.
    void note_fact(const std::string& name, const std::string& value) noexcept;
    // Takes a residency snapshot and appends it to the capture. Not from a thread that is being recorded.
    void take_residency_snapshot() noexcept;
    // Whether this is a child of a run that was short and held little: what its end costs is much of what it costs.
    bool is_of_small_child() const noexcept;
    bool is_of_this_process() const noexcept { return pid_ == ::getpid(); }  // false in the child of a vfork
    // Whether this is a child of a run, and leaves a row of the run's index and no capture.
    bool is_row_enough() const noexcept;
    // Bytes that the program has allocated, for the sampler: the capture stays open while it runs.
    std::int64_t live_bytes() const noexcept { return __atomic_load_n(&file_.header().live_bytes, __ATOMIC_RELAXED); }
    // The same with what the process inherited: what a child that is forked now can read at most.
    std::int64_t inheritable_bytes() const noexcept {
        return live_bytes() + static_cast<std::int64_t>(file_.header().inherited_bytes);
    }
    // From this size on, blocks and mappings are announced before they are allocated, and before they are freed and
    // after.
    static constexpr std::size_t kLargeChange = 1 << 20;
    [[gnu::cold, gnu::noinline]] void before_rise(std::uint64_t bytes) noexcept;
    [[gnu::cold, gnu::noinline]] void before_release(std::uint64_t bytes) noexcept;
    [[gnu::cold, gnu::noinline]] void after_release() noexcept;
    // The last stores before the process image is gone. Both are safe in a signal's handler. Returns whether it did.
    struct Exit {
        capture::EndedBy by;
        int code = -1, signal = 0;  // -1: not known; 0: none
    };
    bool note_exit(const Exit& exit) noexcept;
    // The recording is about to be stopped because the process ends in this way.
    void expect_end(capture::EndedBy by) noexcept { ended_by_ = by; }
    void withdraw_exit() noexcept;

    // Under a BusyGuard.
    Lock& lock() noexcept { return lock_; }
    bool are_calls_filtered() const noexcept { return lock_.is_filtered(); }
    // In the child of a fork, which is not recorded: the capture is the parent's. Safe in a signal's handler.
    void become_unrecorded_child() noexcept;
    // Then, in the child of a recorded process that forked where memory can be taken: if children are recorded, it has
    // a recording of its own from now on. `inherited_bytes`: see inheritable_bytes().
    void record_child(std::int64_t inherited_bytes, const process::Moment& began) noexcept;
    // Makes every thread check more than its stack at its next event.
    void request_attention() noexcept {
        epoch_.fetch_add(1, std::memory_order_relaxed);
        set_plain_epoch();
    }
    // Makes allocations by Python's allocators call answer_for_python(), until it is time: one of a few or, where few
    // are sampled, those that leave the fast path. Signal handlers do not call these allocators, so that call may start
    // threads and call functions of the interpreter.
    void ask_python() noexcept;
    void answer_for_python() noexcept;
    // Makes this thread's next small object call it.
    static void hurry_python() noexcept;

    // Whether this thread is in the recorder already: what its events then report is our own, or a signal handler's.
    static bool is_inside() noexcept {
        return tls.busy != 0 ||
               (tls.thread != nullptr && tls.thread->ticket.active.load(std::memory_order_relaxed) != 0);
    }
    // The thread is about to jump to where its stack pointer is `to`. If the jump abandons work of the recorder, the
    // recording ends, because its tables may be half changed. Safe in a signal handler.
    void on_jump(std::uintptr_t to) noexcept;

private:
    Recorder() = default;
    friend Recorder& recorder() noexcept;

    static LockTicket* ticket() noexcept { return tls.thread == nullptr ? nullptr : &tls.thread->ticket; }
    Thread* mine() noexcept {
        Thread* t = tls.thread;
        return t != nullptr ? t : make_thread();
    }
    Thread* make_thread() noexcept;
    Thread* take_thread() noexcept;
    static void give_thread_back(void* thread) noexcept;
    void sync(Thread& t, std::uint32_t start_node = 0);
    void show_name(Thread& t, bool is_last);
    void show_last_names();
    // What follows is under the lock, but for find_top() where the stack turns out to be known.
    bool is_up_to_date(const Thread& t) const noexcept { return t.epoch == epoch_.load(std::memory_order_relaxed); }
    template <typename Move>
    bool find_top(Thread& t, const Move& move, capture::Kind kind = capture::Kind::native);
    template <typename Move>
    bool find_changed_top(Thread& t, hw_slot* changed, const Move& move);
    void move_top(Thread& t, hw_slot* changed);
    [[gnu::noinline]] bool settle_top(Thread& t, hw_slot* changed) noexcept;
    static int grow_memo(hw_memo* memo, std::uint32_t capacity);
    void intern_slot(Thread& t, const hw_slot& slot, std::uint64_t key, Thread::Edge* edge);
    std::uint32_t account_at_top(Thread& t, capture::Kind kind);
    std::uint32_t account_of_native_frames(Thread& t, capture::Kind kind);
    std::uint32_t account_of_unknown_walk(Thread& t, capture::Kind kind, const NativeStack::Wanted& wanted);
    std::uint32_t opened_account(std::uint32_t node, capture::Kind kind);
    NativeStack::Joint* native_joint(Thread& t);
    std::uint32_t charged_python_node(Thread& t, NativeStack& stack);
    WaitedAt own_line(std::uint32_t node) const;
    bool find_other(Thread& t, WaitedAt* found);
    WaitedAt line_of_waiting(Thread& t, const hw_state& state);
    WaitedAt only_line_of_waiting(Thread& t);
    WaitedAt find_waiting(Thread& t);
    bool has_asked(const Thread& t, std::size_t bytes) const noexcept;
    bool find_wait(Thread& t, std::size_t bytes);
    void renew_wait(Thread& t, std::size_t bytes);
    std::uint32_t charged_node(Thread& t);
    std::uint32_t python_node(Thread& t);

    template <typename Work>
    bool at_stack(const Work& work, bool* was_behind = nullptr, capture::Kind kind = capture::Kind::native);
    template <typename Work>
    void at_stack_guarded(const Work& work) noexcept;

    // The cases that record() and forget() leave over. "biased": the lock is held on its fast path, and released. See
    // README.md for the table.
    [[gnu::noinline]] void* record_locked(void* block, std::size_t bytes, capture::Kind kind) noexcept;
    template <capture::Kind kKind>
    [[gnu::noinline]] void* record_biased_moved(Thread& t, const void* instr, void* block, std::size_t bytes) noexcept;
    template <capture::Kind kKind>
    void* record_here(void* block, std::size_t bytes) noexcept;
    template <capture::Kind kKind>
    [[gnu::noinline]] void* record_biased_unsettled(Thread& t, LiveTable::Region* region, void* block,
                                                    std::size_t bytes) noexcept;
    template <capture::Kind kKind>
    [[gnu::noinline]] void* record_biased_unattached(Thread& t, LiveTable::Region* region, void* block,
                                                     std::size_t bytes) noexcept;
    template <capture::Kind kKind>
    void* record_biased(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes) noexcept;
    template <capture::Kind kKind>
    [[gnu::noinline]] void* record_biased_native(Thread& t, LiveTable::Region* region, void* block,
                                                 std::size_t bytes) noexcept;
    template <capture::Kind kKind>
    [[gnu::noinline]] void* record_biased_walk(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes,
                                               NativeStack::Wanted wanted) noexcept;
    template <capture::Kind kKind>
    void* finish_biased(Thread& t, LiveTable::Region* region, void* block, std::size_t bytes,
                        std::uint32_t account) noexcept;
    template <capture::Kind kKind>
    bool charge_known(Thread& t, LiveTable::Region* region, std::uintptr_t address, std::size_t bytes,
                      std::uint32_t account) noexcept;
    template <capture::Kind kKind>
    [[gnu::noinline]] void* record_biased_large(Thread& t, LiveTable::Region* region, void* block,
                                                std::size_t bytes) noexcept;
    template <capture::Kind kKind>
    [[gnu::noinline]] void* record_biased_rare(Thread& t, LiveTable::Region* region, void* block,
                                               std::size_t bytes) noexcept;
    [[gnu::cold, gnu::noinline]] void count_unknown_free(const void* block) noexcept;
    [[gnu::noinline]] void forget_locked(LiveTable::Region* region, const void* block) noexcept;
    [[gnu::noinline]] void forget_any_size(LiveTable::Region* region, const void* block) noexcept;
    [[gnu::cold, gnu::noinline]] void announce_release(const void* block, const Block& taken) noexcept;
    [[gnu::noinline]] void forget_unless_large(LiveTable::Region* region, const void* block) noexcept;
    [[gnu::noinline]] void forget_biased_rare(Thread& t, LiveTable::Region* region, const void* block) noexcept;
    Block take_exact(const void* block) noexcept;
    // Events of threads that share the lock: shared_events.cpp.
    bool begin_sharing() noexcept override;
    Episode merge(const Sharing& who) noexcept override;
    void merge_thread_accounts() noexcept;
    bool share_or_leave(Thread& t) noexcept;
    template <capture::Kind kKind>
    [[gnu::noinline]] void* record_shared(Thread& t, LiveTable::Region* region, void* block,
                                          std::size_t bytes) noexcept;
    template <bool kPlain>  // whether the block's stretch had small ones alone
    [[gnu::noinline]] void forget_shared(Thread& t, LiveTable::Region* region, const void* block) noexcept;
    template <capture::Kind kKind>
    bool add_shared(Thread& t, LiveTable::Region* region, std::uintptr_t address, std::size_t bytes) noexcept;
    bool remove_shared(Thread& t, LiveTable::Region* region, std::uintptr_t address, LiveTable::Place place,
                       Block* taken) noexcept;
    bool take_shared(Thread& t, LiveTable::Region* region, std::uintptr_t address, LiveTable::Place place,
                     Block* taken) noexcept;
    template <bool kFreed>
    Block take_locked(LiveTable::Region* region, std::uintptr_t address) noexcept;
    template <bool kFreed>
    Block remove_exclusive(LiveTable::Region* region, std::uintptr_t address, LiveTable::Place place,
                           const Thread* t) noexcept;
    bool is_sampled(Thread& t, std::size_t bytes) noexcept;
    void begin_sampling(Thread& t) noexcept;
    void set_up_sampling(const StartOptions& options) noexcept;
    void keep_counts_of(Thread& t) noexcept;
    void put_back_sampled(std::uintptr_t address, const Block& taken) noexcept;
    void insert_sampled(std::uintptr_t address, std::uint64_t bytes, std::uint32_t account);
    Block take_sampled(const void* block) noexcept;
    void forget_sampled(const void* block) noexcept;
    void debit_sampled(const Block& block) noexcept;
    bool samples_few_blocks() const noexcept { return sample_bytes_ >= kFewBlocksFrom; }
    sampling::Weight weight_of(std::uint64_t bytes) const noexcept { return sampling::weight(bytes, sample_bytes_); }
    struct Counts {
        std::int64_t bytes = 0;
        std::uint64_t blocks = 0;
    };
    Counts counts_of(const Thread& t) const noexcept;
    void note_exact_totals() noexcept;
    void note_exact_totals_if_due(std::uint64_t now) noexcept;
    void note_refused_children() noexcept;
    std::int64_t standard_error_of_peak() const;
    // Of a marker or phase: its text, how many moments there were, and the first of them at which a snapshot is due. A
    // name that occurs twice has none.
    struct ScopeName {
        std::uint32_t text = 0;  // string
        std::uint64_t moments = 0, next_snapshot = 3;
    };
    std::uint32_t scope_name(std::string_view name);
    void note_live(std::string_view name);
    void note_interval(std::uint64_t now) noexcept;
    OwnPages count_own_pages() noexcept;
    void count_own_pages_if_due(std::uint64_t now) noexcept;
    void take_for_put(std::int64_t bytes) noexcept;
    void give_pages_back_if_due(std::uint64_t now, const OwnPages& own) noexcept;
    void raise_heap_peaks() noexcept;
    void stop_reading_accounts() noexcept {
        accounts_.stop_peak_reading();
        set_plain_epoch();
    }
    void end_open_scopes() noexcept;
    void note_resident(std::int64_t resident_bytes, std::int64_t peak_bytes) noexcept;
    void store_program_peak() noexcept;
    void large_mappings(residency::Ranges* out);
    void append_residency(const residency::Breakdown& found, std::uint64_t at_ns);
    void write_back_if_due(std::uint64_t now) noexcept;
    void add_point(std::uint64_t now, const process::Sizes& sizes);
    void insert_block(LiveTable::Region* region, std::uintptr_t address, std::uint64_t bytes, std::uint32_t account);
    void record_at_thread_exit(std::uintptr_t address, std::size_t bytes, capture::Kind kind);
    void remove_stale(std::uintptr_t address) noexcept;
    void forget_freed();
    [[gnu::noinline]] void debit_stale(const Block& stale) noexcept;
    static bool is_plain() noexcept { return !holds(g_switches.plain_epoch, 0); }
    static bool is_on() noexcept { return g_switches.mode.load(std::memory_order_relaxed) == Mode::on; }
    void set_mode(Mode mode) noexcept;
    void set_plain_epoch() noexcept;
    static void set_small_below() noexcept;
    void store_exit(const Exit& exit) noexcept;
    void store_counts() noexcept;
    void fail(const char* reason) noexcept;
    void abandon(Thread* t) noexcept;
    // Everything that may end a recording by our own fault runs in here; nothing of it reaches the program.
    template <typename Work>
    [[gnu::always_inline]] void guarded(const Work& work) noexcept {
        BusyGuard busy;
        try {
            work();
        } catch (const capture::NoRoom&) {
            fail(kCannotGrow);
        } catch (const SharedRegion&) {
            fail(kSharedRegion);
        } catch (const std::exception&) {
            fail(kNoMemory);
        }
    }
    // Counts only what our own fault lost: an event that meets the end of a recording is not part of it.
    void lose_event() noexcept {
        if (g_switches.mode.load(std::memory_order_relaxed) == Mode::counting_losses)
            lost_.fetch_add(1, std::memory_order_relaxed);
    }
    // For what is worth less than the recording: where there is no room for it, it is left out.
    template <typename Work>
    static void if_there_is_room(const Work& work) noexcept {
        BusyGuard busy;
        try {
            work();
        } catch (const capture::NoRoom&) {
        } catch (const std::exception&) {
        }
    }
    template <typename Work>
    void if_recorded(const Work& work) noexcept {
        if_there_is_room([&] {
            Hold hold(lock_);
            if (is_on() && !only_counters_) work();
        });
    }
    int begin_copy(capture::CaptureCopy* copy, const char* path) noexcept;
    void write_facts(const StartOptions& options);
    void append_fact(const std::string& name, const std::string& value);
    bool leave_row_alone(bool heap_has_headers, bool is_leaving) noexcept;
    Children::Ended figures_at_end(capture::State state) noexcept;
    template <typename Close>
    void let_go(const Close& close, bool is_leaving = false) noexcept;
    void forget_tables() noexcept;
    void forget_how_to_record() noexcept;
    void forget_tables_of_parent() noexcept;
    Summary summary_so_far();
    void name_lines(Summary& summary);
    void compose_last_words(LastWords::Text* out);

    Lock lock_;
    capture::CaptureFile file_;
    CallTree tree_;
    Accounts accounts_;
    LiveTable live_;
    SampleTable samples_;  // instead of live_, in sampled mode
    MappingAccounts mappings_{accounts_, tree_};
    Codes codes_{tree_};
    ThreadNames names_{tree_};
    NativeFrames native_frames_{tree_};
    Devices devices_{tree_};
    capture::FileTable<capture::TimelineRecord> timeline_;
    capture::FileTable<capture::FactRecord> facts_;
    capture::FileTable<capture::MarkerRecord> markers_;
    capture::FileTable<capture::ResidencyRecord> residency_;
    capture::FileTable<capture::LargeBlockRecord> large_blocks_;
    capture::FileTable<capture::PressureRecord> pressure_;
    capture::FileTable<capture::RelativeRecord> relatives_;
    Scopes scopes_;
    std::map<std::string, ScopeName, std::less<>> scope_names_;  // of markers and phases
    capture::FileTable<capture::LiveSnapshotRecord> live_snapshots_;
    capture::FileTable<capture::HolderSearchRecord> holder_searches_;
    capture::FileTable<capture::HolderPathRecord> holder_paths_;
    capture::FileTable<capture::HolderBlockRecord> holder_blocks_;
    capture::FileTable<capture::HolderReferenceRecord> holder_references_;
    Accounts::HeapPeak unread_{};  // by the heap's meters, which share their peaks with phases
    bool is_heap_read_ = false;

    // Moves when a code object dies or a recording starts or ends: caches keyed by address are void, and threads check
    // the mode. Relaxed: it is read after the lock is acquired, under which it moves.
    std::atomic<std::uint32_t> epoch_{1};
    std::uint32_t session_ = 0, interval_ = 0;
    std::atomic<std::uint64_t> lost_{0}, unknown_frees_{0};
    std::uint64_t started_ns_ = 0;
    std::uint64_t last_point_ns_ = 0;
    Pause until_slice_, until_count_;
    std::atomic<std::uint64_t> interval_ns_ = 0;
    std::uint64_t next_interval_ns_ = 0;
    std::uint64_t last_refused_slice_ns_ = 0, refusals_ = 0;
    static constexpr std::uint32_t kMostFalls = 64, kFallsInSlice = 2, kMostRises = 16;
    std::uint32_t falls_left_ = kMostFalls;  // slices that may still end because the total fell
    std::uint32_t rises_left_ = kMostRises;  // and because it is about to rise
    hw_state main_state_{};                  // of the main thread, if it began the recording
    std::int64_t collections_ = 0;           // full garbage collections, at the last call of note_collections()
    std::uint64_t collection_markers_ = 0;
    static constexpr std::uint32_t kMostSteps = 256;
    std::uint32_t shared_steps_left_ = kMostSteps;  // rows that the pressure has because what is shared has changed
    bool was_step_ = false;
    std::uint64_t last_pressure_ns_ = 0, next_totals_ns_ = 0;
    Limits limits_;
    LastWords last_words_;
    std::uint64_t next_write_back_ns_ = 0;
    pid_t pid_ = 0;  // that records
    char boot_id_[40] = {};
    std::int64_t resident_error_bytes_ = 0;
    std::int64_t maximum_at_start_ = 0;
    FutexMutex peak_lock_;  // of what follows
    ProgramPeak program_peak_;
    std::int64_t code_file_bytes_ = 0, code_anonymous_bytes_ = 0;  // see StartOptions
    std::int64_t library_bytes_ =
        0;  // of these, what is certainly hiwater's: its library, as far as it is resident now
    std::int64_t freed_arena_bytes_ = 0, peak_before_freed_arenas_ = 0;  // of one arena; of the program
    GiveBack give_back_;
    bool only_counters_ = false, residency_snapshots_ = true;
    Heap carried_{};  // of the recordings before this one, while the heap's meters are in use
    char fail_reason_[128] = {};
    capture::EndedBy ended_by_ = capture::EndedBy::unknown;
    std::string path_;
    Summary last_;
    Accounts::Figures last_peak_;  // at the last tick: all there is of a capture that somebody truncated
    std::int64_t last_program_peak_ = 0;

    // Allowance that threads which share the lock may still take. Relaxed: only the sum counts.
    std::atomic<std::int64_t> shared_room_below_peak_{0};
    bool shares_in_order_ = false;             // threads list their events; set before they share
    std::atomic<bool> is_peak_moving_{false};  // as threads shared last
    std::uint64_t shared_events_ = 0;          // of this recording

    static constexpr std::uint64_t kFewBlocksFrom = 4096;
    std::uint64_t sample_bytes_ = 0, sample_seed_ = 0, sampling_threads_ = 0;

    FutexMutex pool_lock_;
    Thread* pool_ = nullptr;
    Thread* all_ = nullptr;        // every thread's state there is, in the pool or not
    std::int64_t gone_bytes_ = 0;  // allocated in this recording by threads that have ended
    std::uint64_t gone_blocks_ = 0;
};

// The process's, once it is made. Its place is known to the linker: an event need not look it up.
struct RecorderRoom {
    alignas(Recorder) unsigned char bytes[sizeof(Recorder)];
};
extern RecorderRoom g_recorder_room;
inline Recorder& recorder() noexcept { return *std::launder(reinterpret_cast<Recorder*>(g_recorder_room.bytes)); }

}  // namespace hiwater
