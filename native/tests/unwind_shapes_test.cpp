// Frames that only assembly makes, and stacks that a program makes for itself: each walk finds what the compiler's own
// unwinder finds, or says that it does not know.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "backtrace.h"
#include "support.h"
#include "unwind/unwinder.h"

#if defined(__x86_64__)

// Each calls the function that it is given. What is in which register or word is as the x86-64 ABI has it.
asm(R"(
    .text
shape_expression:               # the CFA is an expression of the stack pointer
    .cfi_startproc
    sub $24, %rsp
    .cfi_escape 0x0f, 2, 0x77, 32
    call *%rdi
    add $24, %rsp
    .cfi_def_cfa %rsp, 8
    ret
    .cfi_endproc
shape_far_return:               # the return address is at CFA - 16
    .cfi_startproc
    .cfi_def_cfa_offset 16
    .cfi_offset %rip, -16
    push %rbp
    .cfi_def_cfa_offset 24
    .cfi_offset %rbp, -24
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    sub $8, %rsp
    call *%rdi
    leave
    .cfi_def_cfa %rsp, 16
    ret $8
    .cfi_endproc
shape_calls_far_return:
    .cfi_startproc
    lea 1f(%rip), %rax
    push %rax                   # in the place of the return address, for a walk that takes the wrong word
    .cfi_def_cfa_offset 16
    push $0
    push %rax
    jmp shape_far_return
1:  pop %rax
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
shape_realigned:                # as GCC does it: through r10, which is saved below rbp
    .cfi_startproc
    lea 8(%rsp), %r10
    .cfi_def_cfa %r10, 0
    and $-64, %rsp
    push -8(%r10)
    push %rbp
    mov %rsp, %rbp
    .cfi_escape 0x10, 6, 2, 0x76, 0
    push %r10
    .cfi_escape 0x0f, 3, 0x76, 0x78, 6
    sub $40, %rsp
    call *%rdi
    add $40, %rsp
    pop %r10
    .cfi_def_cfa %r10, 0
    pop %rbp
    lea -8(%r10), %rsp
    .cfi_def_cfa %rsp, 8
    ret
    .cfi_endproc
shape_by_other_register:        # the CFA is in r13
    .cfi_startproc
    push %r13
    .cfi_def_cfa_offset 16
    .cfi_offset %r13, -16
    lea 16(%rsp), %r13
    .cfi_def_cfa %r13, 0
    and $-64, %rsp
    call *%rdi
    lea -16(%r13), %rsp
    .cfi_def_cfa %rsp, 16
    pop %r13
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
shape_pointer_in_register:      # rbp is kept in r12, and has another value
    .cfi_startproc
    push %r12
    .cfi_def_cfa_offset 16
    .cfi_offset %r12, -16
    mov %rbp, %r12
    .cfi_register %rbp, %r12
    mov %rsp, %rbp
    call *%rdi
    mov %r12, %rbp
    .cfi_restore %rbp
    pop %r12
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
shape_any_pointer:              # rbp is a register as any other
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    mov $1, %ebp
    call *%rdi
    pop %rbp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
shape_two_ways_out:             # a row for each, which the later code must not see
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    test %rdi, %rdi
    jnz 1f
    .cfi_remember_state
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
1:  .cfi_restore_state
    call *%rdi
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
shape_without_rules:            # between functions that have some
    push %rbx
    call *%rdi
    pop %rbx
    ret
shape_tail_call:
    .cfi_startproc
    jmp shape_two_ways_out
    .cfi_endproc
shape_of_a_signal:
    .cfi_startproc
    .cfi_signal_frame
    sub $8, %rsp
    .cfi_def_cfa_offset 16
    call *%rdi
    add $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
shape_of_another_stack:         # the caller's stack pointer is kept, as where a stack was switched
    .cfi_startproc
    push %rsp
    .cfi_def_cfa_offset 16
    .cfi_offset %rsp, -16
    call *%rdi
    add $8, %rsp
    .cfi_def_cfa_offset 8
    .cfi_restore %rsp
    ret
    .cfi_endproc
shape_lies_below:               # its CFA is below its stack pointer
    .cfi_startproc
    sub $8, %rsp
    .cfi_def_cfa_offset 0
    call *%rdi
    add $8, %rsp
    ret
    .cfi_endproc
shape_lies_far:                 # and here far above, where another's stack may be, or nothing
    .cfi_startproc
    sub $8, %rsp
    .cfi_def_cfa_offset 0x20000
    call *%rdi
    add $8, %rsp
    ret
    .cfi_endproc
shape_last_call:                # returns to the next function, if at all
    .cfi_startproc
    sub $40, %rsp
    .cfi_def_cfa_offset 48
    call *%rdi
    .cfi_endproc
shape_after_last_call:
    .cfi_startproc
    ret
    .cfi_endproc
)");

using Shape = void(void (*)());
extern "C" Shape shape_expression, shape_calls_far_return, shape_far_return, shape_realigned, shape_by_other_register,
    shape_pointer_in_register, shape_any_pointer, shape_two_ways_out, shape_without_rules, shape_tail_call,
    shape_of_a_signal, shape_of_another_stack, shape_lies_below, shape_lies_far, shape_last_call;

namespace hiwater::tests {

namespace {

using unwind::End;
using unwind::Frames;

unwind::Unwinder* g_unwinder = nullptr;
Frames* g_frames = nullptr;
volatile int g_calls = 0;
int g_depth = 0;
bool g_is_whole = true;  // whether all frames are to be found

// Walks, and compares the frames with what the compiler's own unwinder finds.
[[gnu::noinline]] void innermost() {
    const std::vector<std::uintptr_t> expected = backtrace();
    g_unwinder->walk({[](void*) -> const void* { return nullptr; }, nullptr}, g_frames);
    REQUIRE(g_frames->count() > 1);
    REQUIRE(g_frames->count() <= expected.size());
    for (std::uint32_t i = 1; i < g_frames->count(); ++i) CHECK(g_frames->address(i) == expected[i]);
    if (g_is_whole) CHECK(g_frames->count() + 2 >= expected.size());  // without the root, and the end that is none
    g_calls = g_calls + 1;
}

jmp_buf g_back;
[[gnu::noinline]] void innermost_that_jumps() {
    innermost();
    longjmp(g_back, 1);
}

struct Walker {
    unwind::Unwinder unwinder;
    const std::unique_ptr<Frames> frames = std::make_unique<Frames>();
    explicit Walker(std::uint32_t check_each = 1) {
        REQUIRE(unwind::prepare());
        frames->forget();
        unwinder.begin({true, {}, {}, check_each});
        g_unwinder = &unwinder;
        g_frames = frames.get();
    }
};

}  // namespace

TEST_SUITE_BEGIN("unwind");

TEST_CASE("frames of assembly are found, or end the walk") {
    const struct {
        Shape *called, *last;  // `last`: at which the walk ends; null: at the root
    } shapes[] = {
        {shape_expression, shape_expression},
        {shape_calls_far_return, shape_far_return},
        {shape_realigned, nullptr},
        {shape_by_other_register, shape_by_other_register},
        {shape_pointer_in_register, shape_pointer_in_register},
        {shape_any_pointer, nullptr},
        {shape_two_ways_out, nullptr},
        {shape_without_rules, shape_without_rules},
        {shape_tail_call, nullptr},
        {shape_of_a_signal, shape_of_a_signal},
        {shape_of_another_stack, shape_of_another_stack},
    };
    Walker walker;
    for (int round = 0; round < 2; ++round)
        for (const auto& shape : shapes) {
            CAPTURE(&shape - shapes);
            g_is_whole = shape.last == nullptr;
            shape.called(innermost);
            CHECK(walker.frames->end == (shape.last == nullptr ? End::root : End::unknown));
            const std::uintptr_t last = walker.frames->address(walker.frames->count() - 1);
            if (shape.last != nullptr) CHECK(last - reinterpret_cast<std::uintptr_t>(shape.last) < 64);
        }
    g_is_whole = true;
    CHECK(walker.unwinder.figures().mismatches == 0);
}

TEST_CASE("a call may be the last instruction of its function") {
    Walker walker;
    if (setjmp(g_back) == 0) shape_last_call(innermost_that_jumps);
    CHECK(walker.frames->end == End::root);
    CHECK(walker.unwinder.figures().mismatches == 0);
}

namespace {

// Without a comparison: the compiler's own unwinder believes everything.
[[gnu::noinline]] void walk_alone() {
    g_unwinder->walk({[](void*) -> const void* { return nullptr; }, nullptr}, g_frames);
    g_calls = g_calls + 1;
}

[[gnu::noinline]] void below(void (*shape)(void (*)()), int frames) {
    if (frames == 0)
        shape(walk_alone);
    else
        below(shape, frames - 1);
    g_calls = g_calls + 1;
}
[[gnu::noinline]] void above() {
    below([](void (*walk)()) { walk(); }, g_depth);
    g_calls = g_calls + 1;
}

}  // namespace

TEST_CASE("a rule that leads below the stack pointer ends the walk") {
    Walker walker(0);
    shape_lies_below(walk_alone);
    CHECK(walker.frames->end == End::unknown);
    CHECK(walker.frames->count() == 2);
}

TEST_CASE("a frame without a rule may be the first beyond the limit") {
    Walker walker(0);
    std::uint32_t most = 0;
    bool ends[2] = {};  // without a rule, and at the limit
    for (g_depth = Frames::kMost - 8; g_depth < static_cast<int>(Frames::kMost) + 8; ++g_depth) {
        shape_without_rules(above);
        REQUIRE(walker.frames->count() <= Frames::kMost);
        ends[walker.frames->end == End::limit] = true;
        most = std::max(most, walker.frames->count());
    }
    CHECK(most == Frames::kMost);
    CHECK((ends[0] && ends[1]));
}

#if defined(__GLIBC__)  // musl has no such contexts

namespace {

ucontext_t g_main, g_other;
void run_on(char* room, std::size_t bytes, void (*function)()) {
    REQUIRE(getcontext(&g_other) == 0);
    g_other.uc_stack.ss_sp = room;
    g_other.uc_stack.ss_size = bytes;
    g_other.uc_link = nullptr;
    makecontext(&g_other, function, 0);
}
[[gnu::noinline]] void in_other() {
    for (;;) {
        shape_realigned(innermost);
        swapcontext(&g_other, &g_main);
    }
}

}  // namespace

TEST_CASE("a context that the program made has a stack of its own") {
    Walker walker;
    std::vector<char> room(256 * 1024);
    run_on(room.data(), room.size(), in_other);
    for (int i = 0; i < 10; ++i) {
        swapcontext(&g_main, &g_other);
        CHECK(walker.frames->count() < 8);  // the C library's first function has no rule
        shape_any_pointer(innermost);
        CHECK(walker.frames->end == End::root);
    }
    CHECK(walker.unwinder.figures().mismatches == 0);
}

namespace {

[[gnu::noinline]] void in_other_that_lies() {
    shape_lies_far(walk_alone);
    swapcontext(&g_other, &g_main);
}

}  // namespace

TEST_CASE("a rule that leads out of a stack is not followed to what cannot be read") {
    Walker walker(0);
    constexpr std::size_t kBytes = 64 * 1024;
    auto* const room =
        static_cast<char*>(mmap(nullptr, 5 * kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    REQUIRE(room != MAP_FAILED);
    REQUIRE(mprotect(room + kBytes, kBytes, PROT_READ | PROT_WRITE) == 0);
    walk_alone();  // this stack is known, and lies above
    run_on(room + kBytes, kBytes, in_other_that_lies);
    swapcontext(&g_main, &g_other);
    CHECK(walker.frames->end == End::unknown);
    CHECK(walker.frames->count() == 2);
    munmap(room, 5 * kBytes);
}

#endif

TEST_SUITE_END();

}  // namespace hiwater::tests

#endif
