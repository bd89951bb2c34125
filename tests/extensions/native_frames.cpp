// Functions that allocate below frames of many shapes. Each block has a size of its own, and stays.
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <stdexcept>
#include <vector>

#define KEEP [[gnu::noinline, gnu::noclone]]

namespace shapes {

volatile int g_after = 0;

KEEP void* take(size_t bytes) {
    void* block = malloc(bytes);
    g_after = g_after + 1;
    return block;
}
template <typename T>
KEEP T* take_many(size_t count) {
    T* block = static_cast<T*>(take(count * sizeof(T)));
    g_after = g_after + 1;
    return block;
}
KEEP void fixed_by_size(size_t room, size_t bytes) {
    volatile char* on_stack = static_cast<char*>(alloca(room));
    on_stack[0] = 1;
    take(bytes);
    g_after = on_stack[0];
}
KEEP void realigned(size_t room, size_t bytes) {
    alignas(64) volatile double lanes[8] = {1};
    fixed_by_size(room, bytes);
    g_after = static_cast<int>(lanes[0]);
}
KEEP void thrower(int depth) {
    if (depth == 0) throw std::runtime_error("here");
    thrower(depth - 1);
    g_after = depth;
}

}  // namespace shapes

extern "C" {

KEEP void third(size_t bytes) {
    shapes::take(bytes);
    shapes::g_after = 3;
}
KEEP void second(size_t bytes) {
    third(bytes);
    shapes::g_after = 2;
}
KEEP void first(size_t bytes) {
    second(bytes);
    shapes::g_after = 1;
}
KEEP void many(size_t bytes) {
    shapes::take_many<long>(bytes / sizeof(long));
    shapes::g_after = 1;
}
KEEP void aligned(size_t room, size_t bytes) {
    shapes::realigned(room, bytes);
    shapes::g_after = 1;
}
// As many stacks as there are rounds, whose frames lie elsewhere each time, with old return addresses in between.
KEEP void wander(size_t rounds, size_t bytes) {
    for (size_t i = 0; i < rounds; ++i) {
        shapes::realigned(16 + i % 7 * 48, bytes);
        shapes::fixed_by_size(64 + i % 5 * 80, bytes);
        first(bytes);
    }
}
KEEP void after_exception(size_t bytes) {
    try {
        shapes::thrower(10);
    } catch (const std::runtime_error&) {
        first(bytes);
    }
    shapes::g_after = 1;
}
KEEP void jump_back(jmp_buf back, int depth) {
    if (depth == 0) longjmp(back, 1);
    jump_back(back, depth - 1);
    shapes::g_after = depth;
}
KEEP void after_jump(size_t bytes) {
    jmp_buf back;
    if (setjmp(back) == 0) jump_back(back, 10);
    first(bytes);
    shapes::g_after = 1;
}
KEEP void call_back(void (*python)(void)) {
    python();
    shapes::g_after = 1;
}
// Allocates on both sides of a call of Python.
KEEP void around(size_t bytes, void (*python)(void)) {
    shapes::take(bytes);
    python();
    shapes::take(bytes);
    shapes::g_after = 1;
}
KEEP void deep(size_t left, size_t bytes) {
    if (left == 0)
        shapes::take(bytes);
    else
        deep(left - 1, bytes);
    shapes::g_after = 1;
}
static size_t bytes_in_context;
KEEP static void context_body() {
    first(bytes_in_context);
    shapes::g_after = 1;
}
// On a stack that the program has made, between two allocations on its own.
KEEP void in_context(size_t bytes) {
    static char room[65536];
    ucontext_t own, other;
    getcontext(&other);
    other.uc_stack.ss_sp = room;
    other.uc_stack.ss_size = sizeof room;
    other.uc_link = &own;
    makecontext(&other, context_body, 0);
    bytes_in_context = bytes;
    first(bytes + 1);
    swapcontext(&own, &other);
    first(bytes + 1);
    shapes::g_after = 1;
}
static size_t bytes_in_handler;
static void handle(int) { first(bytes_in_handler); }
// The handler runs on a stack of its own, between two that do not.
KEEP void in_signal(size_t bytes) {
    static char room[65536];
    stack_t own = {}, before = {};
    own.ss_sp = room;
    own.ss_size = sizeof room;
    struct sigaction action = {}, former = {};
    action.sa_handler = handle;
    action.sa_flags = SA_ONSTACK;
    sigaltstack(&own, &before);
    sigaction(SIGUSR1, &action, &former);
    bytes_in_handler = bytes;
    first(bytes + 1);
    raise(SIGUSR1);
    first(bytes + 1);
    sigaction(SIGUSR1, &former, nullptr);
    sigaltstack(&before, nullptr);
}
static void* run_as_code(const unsigned char* code, size_t length, size_t bytes) {
    void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) abort();
    memcpy(page, code, length);
    reinterpret_cast<void (*)(size_t, void (*)(size_t))>(page)(bytes, first);
    return page;
}
// Code in no file, as a compiler that runs in the program makes it: it calls what it is given, with one argument.
KEEP void* generated(size_t bytes) {
    static const unsigned char code[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd6, 0x48, 0x83, 0xc4, 0x08, 0xc3};
    return run_as_code(code, sizeof code, bytes);
}
// The same with a jump, so that what lies in the place of a return address is none of a call.
KEEP void* jumped_to(size_t bytes) {
    static const unsigned char code[] = {0x48, 0x83, 0xec, 0x08, 0x48, 0x8d, 0x05, 0x03, 0x00, 0x00,
                                         0x00, 0x50, 0xff, 0xe6, 0x48, 0x83, 0xc4, 0x08, 0xc3};
    return run_as_code(code, sizeof code, bytes);
}
static void* thread_body(void* bytes) {
    first(reinterpret_cast<size_t>(bytes));
    return nullptr;
}
KEEP void in_thread(size_t bytes) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, thread_body, reinterpret_cast<void*>(bytes)) == 0)
        pthread_join(thread, nullptr);
    shapes::g_after = 1;
}

}  // extern "C"
