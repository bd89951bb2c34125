#include "stacks/native_frames.h"

#include <limits.h>
#include <unistd.h>

#include <cstring>

#include "base/raw_calls.h"
#include "session/recorder.h"

namespace hiwater {

using capture::CodeKind;
using capture::Owner;

namespace {

// Addresses of no code, for the edges of what stands in the place of frames.
constexpr std::uintptr_t kUnknownFrames = 1;

const void* anchor_of(void* memo) { return hw_loop_anchor(static_cast<hw_memo*>(memo)); }

// A library that was loaded by a path without a root has the folder of that moment, which is mostly that of now.
std::string_view path_of(const unwind::Module& module, const std::string& program, char (&room)[2 * PATH_MAX]) {
    const std::string_view given = module.path == nullptr ? "" : module.path;
    if (given.empty()) return program;
    const bool is_relative = given[0] != '/' && given.find('/') != std::string_view::npos && given.size() < PATH_MAX;
    const long folder = is_relative ? raw::syscall(SYS_getcwd, room, PATH_MAX - 1) : 0;  // with its NUL
    if (folder <= 0 || room[0] != '/') return given;
    room[folder - 1] = '/';
    ::memcpy(room + folder, given.data(), given.size());
    return {room, static_cast<std::size_t>(folder) + given.size()};
}

std::string path_of_program() {
    char path[4096];
    const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
    return {path, n > 0 ? static_cast<std::size_t>(n) : 0};
}

}  // namespace

void NativeFrames::begin(capture::CaptureFile& file, const unwind::Scope& scope) {
    are_wanted_ = scope.is_wanted;
    modules_.attach(file, capture::Table::modules);
    if (!are_wanted_) return;
    file.header().version = capture::kNativeVersion;
    unwinder_.begin(scope);
    program_ = path_of_program();
    modules_.append({});
    unknown_code_ = tree_.code("[unknown frames]", {}, 0, CodeKind::native);
    stack_code_ = tree_.code("[native stack]", {}, 0, CodeKind::native_stack);
    root_ = tree_.child(0, stack_code_, 0);
}

[[gnu::always_inline]] inline NativeStack* NativeFrames::stack_of(Thread& t, std::uint32_t session,
                                                                  std::uint32_t interval) noexcept {
    NativeStack* stack = t.native;
    if (stack == nullptr) {
        stack = t.native = static_cast<NativeStack*>(map_apart(sizeof(NativeStack), &t));
        if (stack == nullptr) return nullptr;
        stack->frames.forget();
    } else if (stack->session == session && stack->interval == interval) [[likely]] {
        stack->epoch = t.epoch;
        return stack;
    }
    stack->epoch = t.epoch;
    stack->known_below = unwinder_.are_walks_checked() ? 0 : kAsksAgain;
    stack->session = session;
    stack->interval = interval;
    stack->has_nodes = false;
    ::memset(stack->charged, 0, sizeof stack->charged);
    zero_pages(stack->edges, sizeof stack->edges);
    zero_pages(stack->joints, sizeof stack->joints);
    stack->walks.forget();
    return stack;
}

void NativeFrames::learn(NativeStack& stack, const NativeStack::Wanted& wanted, std::uint32_t innermost,
                         std::uint32_t account) noexcept {
    const KnownWalks::Key& key = wanted.key;
    std::uint32_t path = stack.walks.path_to(innermost, key, stack.frames.stack.end());
    if (path == 0) {
        unwind::Path fresh;
        if (!unwinder_.describe(key.address, key.stack_pointer, &stack.frames, &fresh)) return;
        path = stack.walks.put_path(innermost, key, fresh);
    }
    stack.walks.put(key, path, account);
}

[[gnu::always_inline]] inline std::uint32_t NativeFrames::find(Thread& t, NativeStack& stack,
                                                               const NativeStack::Wanted* wanted) {
    unwind::Frames& frames = stack.frames;
    const unwind::LoopAnchor anchor{anchor_of, &t.memo};
    if (wanted != nullptr && !unwinder_.is_own(wanted->key.address)) {
        const KnownWalks::Key& key = wanted->key;
        unwinder_.walk_from({key.address, key.stack_pointer, wanted->frame_pointer, nullptr, nullptr, 0}, anchor,
                            &frames);
    } else {
        unwinder_.walk(anchor, &frames);
    }
    if (stack.unloadings != frames.unloadings) [[unlikely]] {
        stack.unloadings = frames.unloadings;
        zero_pages(stack.edges, sizeof stack.edges);
        stack.walks.forget();
    }
    std::uint32_t node = root_;
    const auto go_to = [&](std::uintptr_t address) {
        NativeStack::Edge& edge = stack.edge_of(address, node);
        if (edge.address != address || edge.parent != node) [[unlikely]]
            edge = {address, node, child(node, address)};
        node = edge.node;
    };
    std::uint32_t i = unwind::Frames::kMost;
    if (stack.has_nodes && frames.same_from != i) {
        i = frames.same_from;
        node = frames.at[i].node;
    } else if (frames.end == unwind::End::unknown || frames.end == unwind::End::limit) {
        go_to(kUnknownFrames);
    }
    stack.has_nodes = false;  // until all have: what follows may throw
    while (i-- > frames.first) {
        go_to(frames.at[i].address);
        frames.at[i].node = node;
    }
    stack.has_nodes = true;
    return node;
}

[[gnu::always_inline]] inline NativeStack::Joint& NativeFrames::joint(NativeStack& stack, std::uint32_t charged,
                                                                      std::uint32_t innermost) {
    NativeStack::Joint& joint = stack.joint_of(charged, innermost);
    if (joint.innermost != innermost || joint.charged != charged) [[unlikely]]
        joint = {charged, innermost, joint_node(charged, innermost), {0, 0}};
    return joint;
}

std::uint32_t NativeFrames::child(std::uint32_t parent, std::uintptr_t address) {
    if (address == kUnknownFrames) return tree_.child(parent, unknown_code_, 0);
    if (unwinder_.is_own(address)) return parent;
    unwind::Module* const module = unwinder_.module_of(address);
    const std::uintptr_t offset = module == nullptr ? 0 : address - module->bias;
    // A walk that has left a stack, as that of a greenlet, ends at a word that is no address of code.
    if (module == nullptr && !unwind::Unwinder::follows_call(address)) return parent;
    if (module == nullptr || offset > UINT32_MAX)
        return tree_.child(parent, generated_code(address), static_cast<std::uint32_t>(address));
    return tree_.child(parent, code_of(*module), static_cast<std::uint32_t>(offset));
}

// Code in no file: as of a module for each 4 GiB of addresses. A map of the compiler that made it may have its names.
std::uint32_t NativeFrames::generated_code(std::uintptr_t address) {
    const std::uintptr_t start = address & ~std::uintptr_t{UINT32_MAX};
    const std::uint32_t path = tree_.string("[generated code]");
    for (std::uint32_t i = 1; i < modules_.size(); ++i)
        if (modules_[i].path == path && modules_[i].bias == start) return modules_[i].code;
    const std::uint32_t code =
        tree_.code("[generated code]", {}, static_cast<std::uint32_t>(modules_.size()), CodeKind::native);
    modules_.append({start, start + UINT32_MAX, start, path, 0, code, 0});
    return code;
}

// The module's code, and its record where it has none yet: one that was unloaded may come back to its place.
std::uint32_t NativeFrames::code_of(unwind::Module& module) {
    if (module.code_number != 0) return module.code_number;
    char room[2 * PATH_MAX];
    const std::string_view path = path_of(module, program_, room);
    const std::uint32_t text = tree_.string(path), identity = tree_.string(module.identity);
    for (std::uint32_t i = 1; i < modules_.size(); ++i) {
        const capture::ModuleRecord& known = modules_[i];
        if (known.path == text && known.identity == identity && known.bias == module.bias)
            return module.code_number = known.code;
    }
    const std::size_t slash = path.rfind('/');
    const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
    const auto number = static_cast<std::uint32_t>(modules_.size());
    const std::uint32_t code = tree_.code(name, path, number, CodeKind::native);
    modules_.append({module.start, module.end, module.bias, text, identity, code, 0});
    return module.code_number = code;
}

// The node that the stack in t.top is charged to, without its native frames.
[[gnu::always_inline]] inline std::uint32_t Recorder::charged_python_node(Thread& t, NativeStack& stack) {
    const std::uint32_t node = t.top->node();
    auto& known = stack.charged[node % NativeStack::kCharged];
    if (known.node != node || node == 0) known = {node, python_node(t)};
    return known.charged;
}

// The stack in t.top with its native frames. Null where there is no memory.
[[gnu::always_inline]] inline NativeStack::Joint* Recorder::native_joint(Thread& t) {
    NativeStack* const stack = native_frames_.stack_of(t, session_, interval_);
    if (stack == nullptr) return nullptr;
    const std::uint32_t charged = charged_python_node(t, *stack), innermost = native_frames_.find(t, *stack, nullptr);
    return &native_frames_.joint(*stack, charged, innermost);
}

// As account_at_top(), where native frames belong to the stack: they may differ at every event.
std::uint32_t Recorder::account_of_native_frames(Thread& t, capture::Kind kind) {
    NativeStack::Joint* const joint = native_joint(t);
    if (joint == nullptr) return opened_account(python_node(t), kind);
    std::uint32_t& account = joint->account[static_cast<std::uint32_t>(kind)];
    if (account == 0) account = opened_account(joint->node, kind);
    return account;
}

// The same where no walk is known that would be the same. Most such stacks occur once: a walk is learnt at the second
// time, and what a thread keeps of joints is not asked.
std::uint32_t Recorder::account_of_unknown_walk(Thread& t, capture::Kind kind, const NativeStack::Wanted& wanted) {
    NativeStack* const stack = native_frames_.stack_of(t, session_, interval_);
    if (stack == nullptr) return opened_account(python_node(t), kind);
    const std::uint32_t charged = charged_python_node(t, *stack), innermost = native_frames_.find(t, *stack, &wanted);
    const std::uint64_t nodes = tree_.node_count();
    const std::uint32_t node = native_frames_.joint_node(charged, innermost), account = opened_account(node, kind);
    if (wanted.known != 0 && !native_frames_.are_same_frames(accounts_.record(wanted.known).node, node))
        native_frames_.note_wrong_walk();
    if (wanted.known != account && tree_.node_count() == nodes)
        native_frames_.learn(*stack, wanted, innermost, account);
    return account;
}

// The node that what is allocated on the stack in t.top is charged to. Under the lock.
std::uint32_t Recorder::charged_node(Thread& t) {
    const NativeStack::Joint* const joint = native_frames_.are_wanted() ? native_joint(t) : nullptr;
    return joint == nullptr ? python_node(t) : joint->node;
}

}  // namespace hiwater
