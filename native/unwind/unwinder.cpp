#include "unwind/unwinder.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unwind.h>

#include <new>

#include "base/errno_kept.h"
#include "base/raw_calls.h"

namespace hiwater::unwind {

std::atomic<std::uint32_t> g_unloadings{0};

namespace {

std::uintptr_t word_at(std::uintptr_t address) noexcept { return *reinterpret_cast<const std::uintptr_t*>(address); }

}  // namespace

// The kernel copies the mask before it refuses the request. No memory is written, and no filter of system calls that
// lets a program block signals has anything against it.
bool ReadableStack::can_be_read(std::uintptr_t page) noexcept {
    return raw::invoke(SYS_rt_sigprocmask, -1, static_cast<long>(page), 0, 8, 0, 0) == -EINVAL;
}

void note_unloading() noexcept { g_unloadings.fetch_add(1); }

void Unwinder::begin(const Scope& scope) noexcept {
    forget();
    scope_ = scope;
    figures_ = {};
}

void Unwinder::forget() noexcept {
    rules_.forget();
    modules_.forget();
    reader_.forget();
    own_paths_ = 0;
}

// The pages are gone already.
void Unwinder::forget_in_child() noexcept {
    ::new (static_cast<void*>(&rules_)) RuleTable();
    ::new (static_cast<void*>(&modules_)) Modules();
}

void Unwinder::forget_if_unloaded() noexcept {
    const std::uint32_t now = g_unloadings.load(std::memory_order_acquire);
    if (now == unloadings_) [[likely]]
        return;
    forget();
    unloadings_ = now;
}

// The kernel reads the bytes: another thread may unmap meanwhile what a word leads to. Where it may not, it is a call.
bool Unwinder::follows_call(std::uintptr_t address) noexcept {
    constexpr std::size_t kNear = 5, kLongest = 7;
    const ErrnoKept kept;
    std::uint8_t code[kLongest] = {};
    const auto byte = [&code](std::size_t distance) { return code[kLongest - distance]; };
    for (const std::size_t count : {kLongest, address % kPage}) {  // the second where a mapping begins with this page
        if (count > kLongest || count > address) continue;
        const iovec there{reinterpret_cast<void*>(address - count), count};
        const ssize_t n = raw::read_own(code + kLongest - count, count, &there, 1);
        if (n < 0 && errno != EFAULT) return true;
        if (n != static_cast<long>(count)) continue;
        if (byte(kNear) == 0xe8) return true;
        for (std::size_t i = 2; i <= count; ++i)  // of what a register or a word of memory contains
            if (byte(i) == 0xff && (byte(i - 1) & 0x38) == 0x10) return true;
    }
    return false;
}

// From a frame to its caller. False where the words that the rule names cannot be, or cannot be read.
[[gnu::always_inline]] inline bool Unwinder::leave(const Rule& rule, ReadableStack& stack, Frame* frame,
                                                   Frame* caller) noexcept {
    const std::uintptr_t from = rule.cfa == Rule::Cfa::from_rsp ? frame->stack_pointer : frame->frame_pointer;
    std::uintptr_t cfa = from + static_cast<std::uintptr_t>(std::intptr_t{rule.offset});
    const auto can_read = [&](std::uintptr_t at) {
        return at >= frame->stack_pointer && at % 8 == 0 && stack.holds(at);
    };
    frame->caller_stack_at = nullptr;
    if (rule.cfa == Rule::Cfa::at_rbp) [[unlikely]] {
        if (!can_read(cfa)) return false;
        frame->caller_stack_at = reinterpret_cast<const std::uintptr_t*>(cfa);
        cfa = word_at(cfa);
    }
    const std::uintptr_t address_at = cfa - sizeof cfa;
    if (!can_read(address_at)) [[unlikely]]
        return false;
    caller->frame_pointer = frame->frame_pointer;
    frame->caller_pointer_at = nullptr;
    if (rule.rbp != Rule::Rbp::same) {
        const bool is_at_cfa = rule.rbp == Rule::Rbp::at_cfa;
        const std::uintptr_t at =
            (is_at_cfa ? cfa : frame->frame_pointer) + static_cast<std::uintptr_t>(std::intptr_t{rule.rbp_slot} * 8);
        // Below the return address, all can be read that the stack pointer does not exclude.
        if (at < frame->stack_pointer || (!is_at_cfa && !can_read(at))) [[unlikely]]
            return false;
        frame->caller_pointer_at = reinterpret_cast<const std::uintptr_t*>(at);
        caller->frame_pointer = word_at(at);
    }
    caller->address = word_at(address_at);
    caller->stack_pointer = cfa;
    return true;
}

// The rule of an address that was not met before. The frame that contains the anchor is one of the interpreter's loop,
// and so is every other frame that stands at this address. Without an anchor it is not known of the interpreter's code
// which part is the loop: nothing is kept of it then.
Rule Unwinder::learn(ReadableStack& stack, const LoopAnchor& anchor, const Frame& frame) {
    Rule rule{};
    if (const Module* const module = modules_.at(frame.address - 1); module != nullptr && module->header != nullptr)
        rule = reader_.rule_of(module->tables, module->header, module->code, frame.address);
    if ((rule.flags & Rule::kByPointer) != 0) ++figures_.by_pointer_rules;
    if (scope_.interpreter.contains(frame.address)) {
        const auto at = reinterpret_cast<std::uintptr_t>(anchor.find(anchor.context));
        if (at == 0) return rule;
        Frame left = frame, caller;
        if (rule.cfa > Rule::Cfa::end && leave(rule, stack, &left, &caller) && at >= frame.stack_pointer &&
            at < caller.stack_pointer)
            rule.flags |= Rule::kLoop;
    }
    rules_.put(frame.address, rule);
    return rule;
}

// Whether all that the walk before read from this frame on is there still, up to the interpreter's loop: a walk from
// here would read it again, and come to the same. Return addresses alone would not show that: a larger frame may have
// left an old one where it was.
inline bool Frames::stands_from(std::uint32_t i) const noexcept {
    for (const Frame* frame = at + i; frame != at + kMost; ++frame) {
        const Frame& caller = frame[1];
        if (word_at(caller.stack_pointer - sizeof caller.address) != caller.address ||
            (frame->caller_pointer_at != nullptr && *frame->caller_pointer_at != caller.frame_pointer) ||
            (frame->caller_stack_at != nullptr && *frame->caller_stack_at != caller.stack_pointer))
            return false;
    }
    return true;
}

// Puts the new frames in front of those that stay.
inline void Frames::join(std::uint32_t fresh_count) noexcept {
    first = same_from - fresh_count;
    for (std::uint32_t i = 0; i < fresh_count; ++i) at[first + i] = fresh[i];
}

// From the walk to the frame of the program that called a hook.
inline bool Unwinder::leave_own(const Frame& start, ReadableStack& stack, Frame* first) noexcept {
    const auto word = [&](std::uint32_t distance) { return word_at(start.stack_pointer + distance - 8); };
    for (std::uint32_t i = own_paths_; i-- > 0;) {
        const OwnPath& path = own_path_[i];
        const std::uint32_t last = path.count - 1;
        if (start.stack_pointer + path.distance[last] > stack.end()) continue;
        // The one before the last is a hook's: it differs most.
        std::uint32_t same = last;
        while (same > 0 && word(path.distance[same - 1]) == path.caller[same - 1]) --same;
        if (same != 0) continue;
        first->address = word(path.distance[last]);
        if (scope_.own.contains(first->address)) continue;  // a longer one
        first->stack_pointer = start.stack_pointer + path.distance[last];
        first->frame_pointer = path.pointer_at == OwnPath::kInRegister ? start.frame_pointer
                                                                       : word_at(start.stack_pointer + path.pointer_at);
        return true;
    }
    return walk_own(start, stack, first);
}

bool Unwinder::walk_own(const Frame& start, ReadableStack& stack, Frame* first) {
    OwnPath path{};
    bool is_simple = true;
    Frame frame = start, caller;
    while (scope_.own.contains(frame.address)) {
        const Rule* const known = rules_.find(frame.address);
        const Rule rule = known != nullptr ? *known : learn(stack, {}, frame);
        if (rule.cfa <= Rule::Cfa::end || !leave(rule, stack, &frame, &caller)) return false;
        is_simple = is_simple && rule.cfa == Rule::Cfa::from_rsp && rule.rbp != Rule::Rbp::at_rbp &&
                    path.count < OwnPath::kMost;
        if (is_simple) {
            path.distance[path.count] = static_cast<std::uint32_t>(caller.stack_pointer - start.stack_pointer);
            path.caller[path.count++] = caller.address;
            if (frame.caller_pointer_at != nullptr)
                path.pointer_at = static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(frame.caller_pointer_at) -
                                                             start.stack_pointer);
        }
        frame = caller;
    }
    if (is_simple && path.count != 0) {
        own_path_[own_paths_ < kOwnPaths ? own_paths_ : figures_.walks % kOwnPaths] = path;
        own_paths_ += own_paths_ < kOwnPaths;
    }
    *first = frame;
    return true;
}

void Unwinder::walk(const LoopAnchor& anchor, Frames* frames) {
    const auto* const here = static_cast<const std::uintptr_t*>(__builtin_frame_address(0));
    const Frame start{here[1], reinterpret_cast<std::uintptr_t>(here + 2), here[0], nullptr, nullptr, 0};
    if (!begin_walk(start.stack_pointer, frames)) return;
    if (!leave_own(start, frames->stack, frames->fresh)) [[unlikely]] {
        frames->forget();
        ++figures_.unknown;
        return;
    }
    walk_fresh(anchor, frames, start.stack_pointer);
}

void Unwinder::walk_from(const Frame& first, const LoopAnchor& anchor, Frames* frames) {
    if (!begin_walk(first.stack_pointer, frames)) return;
    frames->fresh[0] = first;
    walk_fresh(anchor, frames, first.stack_pointer);
}

// False where nothing of the stack can be read.
[[gnu::always_inline]] inline bool Unwinder::begin_walk(std::uintptr_t stack_pointer, Frames* frames) noexcept {
    forget_if_unloaded();
    ++figures_.walks;
    if (frames->stack.covers(stack_pointer) && frames->unloadings == unloadings_) [[likely]]
        return true;
    frames->forget();
    frames->unloadings = unloadings_;
    if (frames->stack.covers(stack_pointer) || frames->stack.begin(stack_pointer)) return true;
    ++figures_.unknown;
    return false;
}

[[gnu::always_inline]] inline void Unwinder::walk_fresh(const LoopAnchor& anchor, Frames* frames,
                                                        std::uintptr_t start) {
    frames->end = go_up(anchor, frames);
    figures_.frames += frames->count();
    if (frames->end == End::unknown) [[unlikely]]
        ++figures_.unknown;
    if (frames->end == End::limit) [[unlikely]]
        ++figures_.limit;
    if (scope_.check_each != 0 && figures_.walks % scope_.check_each == 0) [[unlikely]]
        check(*frames, start);
}

// From the first of the fresh frames.
[[gnu::always_inline]] inline End Unwinder::go_up(const LoopAnchor& anchor, Frames* frames) {
    // Of the walk before, the innermost frame that may be the present one. None has a stack pointer beyond the last.
    const Frame* const last = frames->at + Frames::kMost;
    const Frame* before = frames->end == End::loop ? frames->at + frames->first : last;
    Frame* frame = frames->fresh;
    const auto end_as = [&](End end, const Frame* same_from, std::uint32_t is_counted) {
        frames->same_from = static_cast<std::uint32_t>(same_from - frames->at);
        frames->join(static_cast<std::uint32_t>(frame - frames->fresh) + is_counted);
        return end;
    };
    for (;; ++frame) {
        while (before != last && before->stack_pointer < frame->stack_pointer) ++before;
        if (before != last && before->stack_pointer == frame->stack_pointer && before->address == frame->address &&
            before->frame_pointer == frame->frame_pointer) {
            const auto i = static_cast<std::uint32_t>(before - frames->at);
            if (frame - frames->fresh <= before - frames->at && frames->stands_from(i))
                return end_as(End::loop, before, 0);
            before = last;
        }
        const Rule* const learnt = rules_.find(frame->address);
        const Rule rule = learnt != nullptr ? *learnt : learn(frames->stack, anchor, *frame);
        if (rule.cfa <= Rule::Cfa::end || (rule.flags & Rule::kLoop) != 0) {
            if (rule.cfa == Rule::Cfa::unknown)
                return end_as(End::unknown, last, frame != frames->fresh + Frames::kMost);
            if (rule.cfa == Rule::Cfa::end) return end_as(End::root, last, 0);
            frames->at[Frames::kMost] = *frame;
            return end_as(End::loop, last, 0);
        }
        if (frame == frames->fresh + Frames::kMost) return end_as(End::limit, last, 0);
        if (!leave(rule, frames->stack, frame, frame + 1)) return end_as(End::unknown, last, 1);
    }
}

bool Unwinder::describe(std::uintptr_t address, std::uintptr_t stack_pointer, Frames* frames, Path* path) noexcept {
    if (frames->end != End::loop) return false;
    path->begin();
    const auto returns = [&](const Frame& caller) {
        return path->add_address(caller.stack_pointer - sizeof caller.address, caller.address, stack_pointer);
    };
    const auto points = [&](std::uintptr_t at, std::uintptr_t pointer) {
        return path->add_pointer(at, pointer, stack_pointer);
    };
    std::uintptr_t pointer_at = stack_pointer + static_cast<std::uintptr_t>(Path::kSavedPointer);
    Frame own{address, stack_pointer, 0, nullptr, nullptr, 0}, caller;
    for (; scope_.own.contains(own.address); own = caller) {
        const Rule* const rule = rules_.find(own.address);
        if (rule == nullptr || rule->cfa != Rule::Cfa::from_rsp || rule->rbp == Rule::Rbp::at_rbp ||
            !leave(*rule, frames->stack, &own, &caller) || !returns(caller))
            return false;
        if (own.caller_pointer_at != nullptr) pointer_at = reinterpret_cast<std::uintptr_t>(own.caller_pointer_at);
    }
    const Frame *const first = frames->at + frames->first, *const loop = frames->at + Frames::kMost;
    if (own.address != first->address || own.stack_pointer != first->stack_pointer) return false;
    for (const Frame* frame = first; frame != loop; ++frame)
        if (!returns(frame[1])) return false;
    for (const Frame* frame = first; frame != loop; ++frame) {
        const Rule* const rule = rules_.find(frame->address);
        if (rule == nullptr) return false;
        const bool needs_pointer = rule->cfa != Rule::Cfa::from_rsp || rule->rbp == Rule::Rbp::at_rbp;
        if (needs_pointer && !points(pointer_at, frame->frame_pointer)) return false;
        const auto stack_at = reinterpret_cast<std::uintptr_t>(frame->caller_stack_at);
        if (stack_at != 0 && !points(stack_at, frame[1].stack_pointer)) return false;
        if (frame->caller_pointer_at != nullptr)
            pointer_at = reinterpret_cast<std::uintptr_t>(frame->caller_pointer_at);
    }
    return true;
}

namespace {

struct Comparison {
    const Frames& walked;
    const Range& own;
    std::uintptr_t start;  // the stack pointer of the first frame
    std::uint32_t index;
    bool is_equal, is_done;
};

// What is there besides the frames: at the end of a walk to the loop, the loop itself.
_Unwind_Reason_Code compare(_Unwind_Context* context, void* data) {
    Comparison& with = *static_cast<Comparison*>(data);
    const std::uintptr_t address = _Unwind_GetIP(context);
    const bool is_recorders = with.index == 0 && with.own.contains(address);
    if (_Unwind_GetCFA(context) < with.start || is_recorders) return _URC_NO_REASON;
    const bool is_beyond = with.index == with.walked.count();
    const std::uintptr_t expected = is_beyond ? with.walked.at[Frames::kMost].address : with.walked.address(with.index);
    with.is_equal = (is_beyond && with.walked.end != End::loop) || address == expected;
    with.is_done = is_beyond || !with.is_equal;
    ++with.index;
    return with.is_done ? _URC_END_OF_STACK : _URC_NO_REASON;
}

}  // namespace

// The compiler's own unwinder, which takes the loader's locks: for tests alone.
void Unwinder::check(const Frames& walked, std::uintptr_t start) noexcept {
    Comparison with{walked, scope_.own, start, 0, true, false};
    _Unwind_Backtrace(compare, &with);
    ++figures_.checked;
    // Where it ended sooner than the walk, the walk has gone too far. LLVM's unwinder does not report a frame that it
    // has no table for, the last one of a walk that ends there.
#if defined(__clang__)
    const bool is_last_left_out = walked.end == End::unknown;
#else
    const bool is_last_left_out = false;
#endif
    if (!with.is_equal || (!with.is_done && with.index + is_last_left_out < walked.count())) ++figures_.mismatches;
}

}  // namespace hiwater::unwind
