// Events of blocks in a sampled recording: which allocations are recorded, and with what weight. sampling.h has the
// rules.
#include <unistd.h>

#include <cmath>

#include "base/raw_calls.h"
#include "session/main_thread_call.h"
#include "stacks/current_stack.h"

namespace hiwater {

using capture::Kind;

namespace {

std::uint64_t any_number() noexcept {
    std::uint64_t number = 0;
    if (!platform::fill_at_random(&number, sizeof number)) number = 0x9e3779b97f4a7c15ULL;
    return number;
}

}  // namespace

// A thread's first event in a sampled recording. With a seed, threads that start in the same order get the same random
// numbers.
void Recorder::begin_sampling(Thread& t) noexcept {
    if (t.sampled_session != 0) {  // otherwise the thread's memory is new
        for (std::size_t i = 0; i < sampling::kStreams; ++i) {
            t.cells[i] = {};
            t.streams.left[i].store(0, std::memory_order_relaxed);
        }
    }
    t.sampled_session = session_;
    t.random.state = sample_seed_ == 0 ? any_number() : sample_seed_ + 0x9e3779b97f4a7c15ULL * ++sampling_threads_;
    if (t.random.state == 0) t.random.state = 1;
    for (int i = 0; i < 8; ++i) t.random.next();  // spreads seeds that are near each other
    t.large_bytes = 0;
    t.streams.blocks.store(0, std::memory_order_relaxed);
    tls.streams = &t.streams;
}

// Whether to record an allocation that may have reached the next sampled byte of its stream.
bool Recorder::is_sampled(Thread& t, std::size_t bytes) noexcept {
    const auto size = static_cast<std::int64_t>(bytes);
    const std::size_t number = sampling::stream_of(bytes);
    std::atomic<std::int64_t>& stream = t.streams.left[number];
    if (t.sampled_session != session_) {
        begin_sampling(t);
        stream.store(-size, std::memory_order_relaxed);
        if (bytes > sampling::kLargestEqual) count_one(t.streams.blocks);
    }
    const bool large = bytes >= sample_bytes_;
    if (bytes == 0 || (large && bytes <= sampling::kLargestEqual)) count_one(t.streams.blocks);
    if (bytes == 0) return false;
    std::int64_t left = stream.load(std::memory_order_relaxed);
    if (large) {
        left += size;  // not part of the stream
        t.large_bytes += size;
    }
    const bool reached = t.cells[number].renew(&left, t.random, sample_bytes_);
    stream.store(left, std::memory_order_relaxed);
    return large || reached;
}

// What the program allocated on a thread in this recording.
Recorder::Counts Recorder::counts_of(const Thread& t) const noexcept {
    if (t.sampled_session != session_) return {};
    Counts counts{t.large_bytes, t.streams.blocks.load(std::memory_order_relaxed)};
    for (std::size_t i = 0; i < sampling::kStreams; ++i) {
        const std::int64_t passed = t.cells[i].granted - t.streams.left[i].load(std::memory_order_relaxed);
        if (passed <= 0) continue;
        counts.bytes += passed;
        if (i <= sampling::kLargestEqual) counts.blocks += static_cast<std::uint64_t>(passed) / i;
    }
    return counts;
}

void* Recorder::record_sampled(void* block, std::size_t bytes, Kind kind) noexcept {
    if (!may_sample_now()) return block;
    if (bytes >= kLargeChange) before_rise(bytes);
    guarded([&] {
        Thread* self = mine();
        if (self == nullptr || !is_sampled(*self, bytes)) return;
        bool was_behind = false;
        const bool is_recorded = at_stack(
            [&](Thread& t) {
                if (t.top->is_internal()) return;
                insert_sampled(reinterpret_cast<std::uintptr_t>(block), bytes,
                               accounts_.account(charged_node(t), kind, bytes < sample_bytes_));
            },
            &was_behind, kind);
        if (!is_recorded) lose_event();
        if (was_behind && kind == Kind::python) MainThreadCall::add_due();
    });
    return block;
}

// Under the lock.
void Recorder::insert_sampled(std::uintptr_t address, std::uint64_t bytes, std::uint32_t account) {
    const Block stale = samples_.insert(address, bytes, account);
    if (stale.account != 0) debit_sampled(stale);
    const sampling::Weight weight = weight_of(bytes);
    accounts_.credit(account, weight.bytes, weight.blocks);
}

void Recorder::debit_sampled(const Block& block) noexcept {
    const sampling::Weight weight = weight_of(block.bytes);
    accounts_.debit(block.account, weight.bytes, weight.blocks);
}

Block Recorder::take_sampled(const void* block) noexcept {
    if (is_inside()) [[unlikely]]
        return {};
    BusyGuard busy;
    Hold hold(lock_, ticket());
    if (!is_on()) return {};
    Block taken = samples_.remove(reinterpret_cast<std::uintptr_t>(block));
    taken.session = session_;
    if (taken.account != 0) debit_sampled(taken);
    return taken;
}

void Recorder::forget_sampled(const void* block) noexcept {
    const Block taken = take_sampled(block);
    if (taken.bytes >= kLargeChange) announce_release(block, taken);
}

// Under the lock: the block was not freed.
void Recorder::put_back_sampled(std::uintptr_t address, const Block& taken) noexcept {
    try {
        samples_.insert(address, taken.bytes, taken.account);
    } catch (const std::bad_alloc&) {
        return fail(kNoMemory);
    }
    const sampling::Weight weight = weight_of(taken.bytes);
    accounts_.restore(taken.account, weight.bytes, weight.blocks);
}

void Recorder::enter_own_work() noexcept {
    BusyGuard busy;
    Thread* const t = mine();
    if (t != nullptr && t->own_depth++ == 0) tls.streams = &g_own_streams;
}

void Recorder::leave_own_work() noexcept {
    Thread* const t = tls.thread;
    if (t == nullptr || t->own_depth == 0 || --t->own_depth != 0) return;
    tls.streams = t->sampled_session == session_ ? &t->streams : &g_no_streams;
}

// Every thread's own counts, which are exact but for what happens while they are read.
void Recorder::note_exact_totals() noexcept {
    UninterruptedHold hold(pool_lock_);
    std::int64_t bytes = gone_bytes_;
    std::uint64_t blocks = gone_blocks_;
    for (const Thread* t = all_; t != nullptr; t = t->next_of_all) {
        const Counts counts = counts_of(*t);
        bytes += counts.bytes;
        blocks += counts.blocks;
    }
    file_.header().exact_total_bytes = static_cast<std::uint64_t>(bytes);
    file_.header().exact_total_blocks = blocks;
}

// For the sampler. It reads kilobytes of each thread. With many threads it takes long: at most a hundredth of the time.
void Recorder::note_exact_totals_if_due(std::uint64_t now) noexcept {
    constexpr std::uint64_t kShortestNs = 25'000'000;
    if (!sampled() || now < next_totals_ns_) return;
    note_exact_totals();
    next_totals_ns_ = now + std::max(kShortestNs, 100 * (now_ns() - now));
}

// A new recording: every thread calls begin_sampling() at its next allocation. Under the lock.
void Recorder::set_up_sampling(const StartOptions& options) noexcept {
    sample_bytes_ = options.sample_bytes;
    sample_seed_ = options.sample_seed;
    sampling_threads_ = 0;
    g_sampled.store(sample_bytes_ != 0, std::memory_order_release);
    if (sample_bytes_ == 0) return;
    UninterruptedHold hold(pool_lock_);
    gone_bytes_ = 0;
    gone_blocks_ = 0;
    for (Thread* t = all_; t != nullptr; t = t->next_of_all) {
        if (t->sampled_session == 0) continue;
        for (auto& left : t->streams.left) left.store(0, std::memory_order_relaxed);
    }
    for (auto& left : g_own_streams.left) left.store(INT64_MAX / 2, std::memory_order_relaxed);
}

// Under the pool's lock: keeps the counts of a thread that ends.
void Recorder::keep_counts_of(Thread& t) noexcept {
    if (sampled()) {
        const Counts counts = counts_of(t);
        gone_bytes_ += counts.bytes;
        gone_blocks_ += counts.blocks;
    }
    t.own_depth = 0;
    t.sampled_session = 0;
    tls.streams = &g_no_streams;
}

std::int64_t Recorder::standard_error_of_peak() const {
    double sampled_bytes = 0;
    for (std::uint32_t id = 1; sample_bytes_ != 0 && id < accounts_.size(); ++id)
        if (accounts_.record(id).sampled != 0 && Accounts::counted(accounts_.record(id).kind))
            sampled_bytes += static_cast<double>(accounts_.at_peak(id).bytes);
    return static_cast<std::int64_t>(
        std::ceil(std::sqrt(static_cast<double>(sample_bytes_) * std::fmax(sampled_bytes, 0))));
}

}  // namespace hiwater
