// The hooks of Python's own allocators. Longer than 400 lines because the functions of both domains and of both ways to
// record are instances of the same few templates, which have to be inlined.
#include <Python.h>

#include "interpose/python_hooks.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstring>

#include "base/cache_lines.h"
#include "heap/fast_path.h"
#include "interpose/allocators.h"
#include "interpose/hooks.h"
#include "interpose/python_tables.h"
#include "interpose/slots.h"

namespace hiwater::interpose {

namespace {

using capture::Kind;

// Interpreters with a GIL of their own call these allocators meanwhile: they read a function and its context one after
// the other, without a lock. So only functions are exchanged, each in one store, and ours take the context of what lies
// below. Which domain a call belongs to is part of the function.
struct alignas(2 * kLine) Domain {
    PyMemAllocatorDomain name;
    bool installed = false;
    PyMemAllocatorEx ours{};
    CodeRange tool;  // the code of the library whose functions lie below ours, if it is not the interpreter
    PyMemAllocatorEx below{};
};
static_assert(offsetof(Domain, below) == kLine);  // see cache_lines.h
// Hooks that sample few blocks do not see frees (see allocate_sample), so they are of no use to another recording.
// Where they must stay, as another tool's lie over them, one of every block puts its own on top of those.
template <Domain& kAll, Domain& kFew>
struct Hooked {
    static constexpr Domain &all = kAll, &few = kFew;
    static constinit inline Domain* used = nullptr;
};
constinit Domain g_all_objects{.name = PYMEM_DOMAIN_OBJ}, g_few_objects{.name = PYMEM_DOMAIN_OBJ};
constinit Domain g_all_memory{.name = PYMEM_DOMAIN_MEM}, g_few_memory{.name = PYMEM_DOMAIN_MEM};
using Objects = Hooked<g_all_objects, g_few_objects>;
using Memory = Hooked<g_all_memory, g_few_memory>;

// With PYTHONMALLOC=malloc these are blocks of whatever allocator malloc is of.
void* key_of(void* block) noexcept {
    return reinterpret_cast<void*>(LiveTable::key_of(reinterpret_cast<std::uintptr_t>(block)));
}

// CPython's allocators give a block for 0 bytes, too: null is always a refusal.
[[gnu::always_inline]] inline void* recorded(void* block, std::size_t bytes) noexcept {
    if (block != nullptr) [[likely]] {
        recorder().on_alloc<Kind::python>(key_of(block), bytes);
    } else {
        recorder().on_refused(bytes);
    }
    return block;
}

// The two requests for a new block, with the context that they bring. CPython's own allocator needs none; in front of
// another's functions it is theirs (see allocate_any).
struct Malloc {
    static constexpr bool is_zeroed = false;
    void* context;
    std::size_t wanted;
    std::size_t bytes() const { return wanted; }
    void* from(const PyMemAllocatorEx& next) const { return next.malloc(context, wanted); }
};
struct Calloc {
    static constexpr bool is_zeroed = true;
    void* context;
    std::size_t count, each;
    std::size_t bytes() const {
        return count * each;
    }  // the interpreter has seen to it that this is no more than there can be
    void* from(const PyMemAllocatorEx& next) const { return next.calloc(context, count, each); }
};

// The functions of the interpreter's table, for one of the functions below that take a request.
template <void* (*kAllocate)(Malloc)>
void* malloc_by(void* context, std::size_t bytes) {
    return kAllocate({context, bytes});
}
template <void* (*kAllocate)(Calloc)>
void* calloc_by(void* context, std::size_t count, std::size_t each) {
    return kAllocate({context, count, each});
}

template <typename Request>
[[gnu::always_inline]] inline void* covered_from(const PyMemAllocatorEx& next, Request request) {
    Covered covered;
    return request.from(next);
}

// To find out whether it is too early takes longer than to record a small object: one of a few finds out.
inline void answer_if_due(std::size_t bytes) noexcept {
    constexpr std::uint8_t kFew = 64;
    if (python_is_asked() && (bytes > kSmallObject || tls.unanswered++ % kFew == 0)) [[unlikely]]
        recorder().answer_for_python();
}

template <Domain& kDomain, typename Request>
[[gnu::noinline]] void* allocate_any(Request request) {
    PyMemAllocatorEx& next = kDomain.below;
    request.context = next.ctx;  // whose function was directly below may have left, and another's is there
    if (!recording()) return request.from(next);
    answer_if_due(request.bytes());
    void* block = covered_from(next, request);
    return tls.covered == 0 ? recorded(block, request.bytes()) : block;
}

// The old block has been removed from the tables; the new one is not in them yet.
[[gnu::always_inline]] inline void* reallocated(const PyMemAllocatorEx& next, void* old, std::size_t bytes,
                                                const Block& taken) {
    void* block;
    {
        Covered covered;
        block = next.realloc(next.ctx, old, bytes);
    }
    if (block == nullptr && old != nullptr)
        recorder().put_back(key_of(old), taken);  // a realloc to 0 gives a block: null is a failure
    return block;
}

[[gnu::always_inline]] inline void* reallocated(const PyMemAllocatorEx& next, void* old, std::size_t bytes) {
    return reallocated(next, old, bytes, recorder().take(key_of(old)));
}

template <Domain& kDomain>
void* python_realloc(void*, void* old, std::size_t bytes) {
    PyMemAllocatorEx& next = kDomain.below;
    if (!recording() || tls.covered != 0) return next.realloc(next.ctx, old, bytes);
    answer_if_due(bytes);
    return recorded(reallocated(next, old, bytes), bytes);
}

template <Domain& kDomain>
void python_free(void*, void* block) {
    if (block != nullptr && recording()) recorder().on_free(key_of(block));
    PyMemAllocatorEx& next = kDomain.below;
    next.free(next.ctx, block);
}

// The same over CPython's own allocator, whose blocks need no key_of(): they lie at multiples of 16, its own and those
// from malloc alike. allocate_exact() is for the sizes that it never takes from malloc.
template <Domain& kDomain, bool kIsSmall = false, typename Request>
[[gnu::always_inline]] inline void* allocate_exact(Request request) {
    void* block = request.from(kDomain.below);
    if (block == nullptr) [[unlikely]]
        return recorded(block, request.bytes());
    return Recorder::record<Kind::python, kIsSmall>(block, request.bytes());
}

template <Domain& kDomain, typename Request>
[[gnu::noinline]] void* allocate_exact_large(Request request) {
    // The bound is 0 unless every block is recorded and no call of answer_for_python() is due: one comparison instead
    // of three.
    if (holds(g_switches.small_below.every_block, 0)) [[unlikely]] {
        if (!wants(Wanted::every_block)) return allocate_any<kDomain>(request);
        answer_if_due(request.bytes());
        if (request.bytes() <= kSmallObject) return allocate_exact<kDomain>(request);
    }
    void* block = covered_from(kDomain.below, request);
    if (tls.covered != 0) [[unlikely]]
        return block;
    if (block == nullptr) [[unlikely]]
        return recorded(block, request.bytes());
    return Recorder::record<Kind::python>(block, request.bytes());
}

template <Domain& kDomain, typename Request>
[[gnu::always_inline]] inline void* allocate_exact_small(Request request) {
    if (!is_above(g_switches.small_below.every_block, request.bytes())) [[unlikely]]
        return allocate_exact_large<kDomain>(request);
    return allocate_exact<kDomain, true>(request);
}

// Most calls give a list its first items, or a few more.
template <Domain& kDomain>
void* exact_realloc(void* context, void* old, std::size_t bytes) {
    if (old == nullptr) return allocate_exact_small<kDomain>(Malloc{context, bytes});
    LiveTable::Region* const region = recorder().region_of(old);
    Block taken;
    if (!is_above(g_switches.small_below.every_block, bytes) || region == nullptr ||
        !recorder().take_small<false>(region, old, &taken)) [[unlikely]]
        return python_realloc<kDomain>(context, old, bytes);
    void* block = reallocated(kDomain.below, old, bytes, taken);
    if (block == nullptr) [[unlikely]]
        return recorded(block, bytes);
    return Recorder::record<Kind::python, true>(block, bytes);
}

template <Domain& kDomain>
[[gnu::noinline]] void exact_free_other(void* context, LiveTable::Region* region, void* block) {
    if (!wants(Wanted::every_block)) return python_free<kDomain>(context, block);
    if (block != nullptr) recorder().forget_other<true>(region, block);
    PyMemAllocatorEx& next = kDomain.below;
    next.free(next.ctx, block);
}

template <Domain& kDomain>
void exact_free(void* context, void* block) {
    LiveTable::Region* const region = recorder().region_of(block);
    if (region == nullptr || !recorder().forget_small(region, block)) [[unlikely]]
        return exact_free_other<kDomain>(context, region, block);
    PyMemAllocatorEx& next = kDomain.below;
    next.free(next.ctx, block);
}

// The same where few of them are sampled. Those come from malloc, whose hooks see their frees. The others cost, when
// they are allocated, a subtraction and no more, and as they go nothing: there is no hook. CPython's allocator passes a
// larger request on to malloc, and gives back to malloc what malloc gave, however small it has become.
void* allocate_by_malloc(const PyMemAllocatorEx& next, std::size_t bytes) noexcept {
    Covered covered;
    void* block = next.malloc(next.ctx, kSmallObject + 1);
    if (block == nullptr || recorder().may_take_room()) return block;
    void* fitting = next.realloc(next.ctx, block, bytes);
    return fitting == nullptr ? block : fitting;
}

template <Domain& kDomain, typename Request>
[[gnu::noinline]] void* allocate_sample(Request request) {
    if (python_is_asked()) [[unlikely]]
        recorder().answer_for_python();
    void* block = Recorder::may_sample_now() ? allocate_by_malloc(kDomain.below, request.bytes()) : nullptr;
    if (block == nullptr) return request.from(kDomain.below);  // the next one will be sampled
    if (request.is_zeroed) std::memset(block, 0, request.bytes());
    return recorder().record_sampled(block, request.bytes(), Kind::python);
}

template <Domain& kDomain, typename Request>
[[gnu::always_inline]] inline void* allocate_sampling(Request request) {
    if (!Recorder::passes_unsampled(request.bytes())) [[unlikely]]
        return allocate_sample<kDomain>(request);
    return request.from(kDomain.below);
}

// A larger one, which comes from malloc anyway.
template <Domain& kDomain, typename Request>
[[gnu::noinline]] void* allocate_sampling_large(Request request) {
    if (!wants(Wanted::few_samples)) return allocate_any<kDomain>(request);
    const bool is_small = request.bytes() <= kSmallObject;  // the bound is 0: see Recorder::hurry_python()
    if (is_small || python_is_asked()) [[unlikely]]
        recorder().answer_for_python();
    if (is_small) return allocate_sampling<kDomain>(request);
    void* block = covered_from(kDomain.below, request);
    if (tls.covered != 0) return block;
    if (block == nullptr) [[unlikely]]
        return recorded(block, request.bytes());
    return recorder().record_if_sampled<Kind::python>(block, request.bytes());
}

template <Domain& kDomain, typename Request>
[[gnu::always_inline]] inline void* allocate_sampling_small(Request request) {
    if (!is_above(g_switches.small_below.few_samples, request.bytes())) [[unlikely]]
        return allocate_sampling_large<kDomain>(request);
    if (request.bytes() > kSmallObject)
        __builtin_unreachable();  // never below the bound: its stream is known without a comparison
    return allocate_sampling<kDomain>(request);
}

template <Domain& kDomain>
void* sampling_realloc(void* context, void* old, std::size_t bytes) {
    if (old == nullptr) return allocate_sampling_small<kDomain>(Malloc{context, bytes});
    if (bytes >= g_switches.small_below.few_samples.load(std::memory_order_relaxed) &&
        (bytes > kSmallObject || !wants(Wanted::few_samples)))
        return python_realloc<kDomain>(context, old, bytes);
    PyMemAllocatorEx& next = kDomain.below;
    void* block = reallocated(next, old, bytes);
    if (block == nullptr) return recorded(block, bytes);
    if (Recorder::passes_unsampled(bytes) || !Recorder::may_sample_now()) return block;
    void* apart = allocate_by_malloc(next, bytes);
    if (apart == nullptr) return block;
    std::memcpy(apart, block, bytes);
    next.free(next.ctx, block);
    return recorder().record_sampled(apart, bytes, Kind::python);
}

// Whether the allocator in force is CPython's own, and not one whose every block comes from malloc.
bool is_own_allocator() noexcept {
    static const auto name_of_it =
        reinterpret_cast<const char* (*)()>(::dlsym(RTLD_DEFAULT, "_PyMem_GetCurrentAllocatorName"));
    const char* name = name_of_it == nullptr ? nullptr : name_of_it();
    return name != nullptr && std::strcmp(name, "pymalloc") == 0;
}

// Whether calls still come by us. A tool that wrapped the allocator before us and leaves before us (tracemalloc,
// stopped by a program that is being recorded) puts back what it had found, and takes us out with itself. What lies
// below us stands aside for one call, and listens; calls of other interpreters pass through it.
thread_local bool t_heard = false;

template <Domain& kDomain>
struct Listener {
    static inline void* (*below)(void*, std::size_t) = nullptr;
    static void* malloc(void* context, std::size_t bytes) {
        t_heard = true;
        return below(context, bytes);
    }
};

template <Domain& kDomain>
bool is_reached() noexcept {
    if (!kDomain.installed) return false;
    Listener<kDomain>::below = kDomain.below.malloc;
    t_heard = false;
    __atomic_store_n(&kDomain.below.malloc, &Listener<kDomain>::malloc, __ATOMIC_RELEASE);
    const bool is_object = kDomain.name == PYMEM_DOMAIN_OBJ;
    void* block = is_object ? PyObject_Malloc(1) : PyMem_Malloc(1);
    __atomic_store_n(&kDomain.below.malloc, Listener<kDomain>::below, __ATOMIC_RELEASE);
    is_object ? PyObject_Free(block) : PyMem_Free(block);
    return t_heard;
}

template <Domain& kDomain>
void install(PyMemAllocatorEx ours) {
    if (is_reached<kDomain>()) return;
    PyMem_GetAllocator(kDomain.name, &kDomain.below);
    ours.ctx = kDomain.below.ctx;
    if (ours.free == nullptr) ours.free = kDomain.below.free;
    kDomain.ours = ours;
    const auto next = reinterpret_cast<const void*>(kDomain.below.malloc);
    kDomain.tool = in_interpreter(next) ? CodeRange{} : code_around(next);
    PyMem_SetAllocator(kDomain.name, &ours);
    kDomain.installed = true;
}

template <typename Hooks>
void install(bool is_own) {
    constexpr Domain &all = Hooks::all, &few = Hooks::few;
    if (wants(Wanted::few_samples) && sees_malloc() && (is_own || is_reached<few>())) {
        Hooks::used = &few;
        // CPython's own allocator uses no context, and its function for frees stays in place.
        return install<few>({nullptr, malloc_by<allocate_sampling_small<few>>, calloc_by<allocate_sampling_small<few>>,
                             sampling_realloc<few>, nullptr});
    }
    Hooks::used = &all;
    if (is_own) {
        // A realloc leaves a block with malloc, however small it becomes, and other mallocs put those of 8 bytes at
        // multiples of 8.
        const bool needs_key = is_malloc_replaced() || !sees_malloc();
        return install<all>({nullptr, malloc_by<allocate_exact_small<all>>, calloc_by<allocate_exact_small<all>>,
                             needs_key ? python_realloc<all> : exact_realloc<all>,
                             needs_key ? python_free<all> : exact_free<all>});
    }
    install<all>(
        {nullptr, malloc_by<allocate_any<all>>, calloc_by<allocate_any<all>>, python_realloc<all>, python_free<all>});
}

// Returns whether all went by us until now. Below another's hooks ours stay, and pass on.
template <Domain& kDomain>
bool remove() noexcept {
    PyMemAllocatorEx now;
    PyMem_GetAllocator(kDomain.name, &now);
    if (kDomain.installed && now.malloc != kDomain.ours.malloc) return kDomain.installed = is_reached<kDomain>();
    if (kDomain.installed) PyMem_SetAllocator(kDomain.name, &kDomain.below);
    kDomain.installed = false;
    return true;
}

// The same, of the hooks that the recording used; those of an earlier one, which had to stay, go where they can.
template <typename Hooks>
bool remove() noexcept {
    constexpr Domain &all = Hooks::all, &few = Hooks::few;
    const bool uses_few = Hooks::used == &few;
    const bool saw_all = Hooks::used == nullptr || (uses_few ? remove<few>() : remove<all>());
    uses_few ? remove<all>() : remove<few>();
    Hooks::used = nullptr;
    return saw_all;
}

// --- code objects

destructor g_code_dealloc = nullptr;

// Stacks are recognised by addresses inside code objects, so their death must be known.
void code_dealloc(PyObject* code) {
    DyingCode dying{code, tls.dying};
    tls.dying = &dying;
    if (recording()) recorder().on_code_death(code);
    g_code_dealloc(code);
    tls.dying = dying.outer;
}

void install_code_watch() {
    if (PyCode_Type.tp_dealloc == code_dealloc) return;
    g_code_dealloc = PyCode_Type.tp_dealloc;
    PyCode_Type.tp_dealloc = code_dealloc;
}

void remove_code_watch() noexcept {
    if (PyCode_Type.tp_dealloc == code_dealloc) PyCode_Type.tp_dealloc = g_code_dealloc;
}

// --- figures of CPython's own allocator

// sys._debugmallocstats() shows them if that allocator is the one in force, which it knows by the function in its
// table. So ours makes room for the call, during which nothing is allocated under this GIL. Its method is shared by all
// interpreters, and stays the same object.
PyMethodDef* g_stats_method = nullptr;
PyCFunction g_show_stats = nullptr;

PyObject* show_stats(PyObject* module, PyObject* nothing) {
    PyMemAllocatorEx now;
    PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &now);
    PyMemAllocatorEx plain = now;
    for (const Domain* ours : {&g_all_objects, &g_few_objects})
        if (ours->installed && plain.malloc == ours->ours.malloc) plain.malloc = ours->below.malloc;
    PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &plain);
    PyObject* result = g_show_stats(module, nothing);
    PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &now);
    return result;
}

void install_stats() {
    PyObject* function = PySys_GetObject("_debugmallocstats");  // borrowed; a program may have put anything there
    if (function == nullptr || !PyCFunction_CheckExact(function) || PyCFunction_GET_FLAGS(function) != METH_NOARGS)
        return;
    PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
    if (method->ml_meth == show_stats || std::strcmp(method->ml_name, "_debugmallocstats") != 0) return;
    g_stats_method = method;
    g_show_stats = method->ml_meth;
    method->ml_meth = show_stats;
}

void remove_stats() noexcept {
    if (g_stats_method != nullptr && g_stats_method->ml_meth == show_stats) g_stats_method->ml_meth = g_show_stats;
}

}  // namespace

PyMemAllocatorEx* table_for(const void* caller, PyMemAllocatorDomain name) noexcept {
    for (Domain* const domain : {Objects::used, Memory::used}) {
        if (domain == nullptr || domain->name != name || !domain->installed || !domain->tool.contains(caller)) continue;
        PyMemAllocatorEx now;
        PyMem_GetAllocator(name, &now);
        return now.malloc == domain->ours.malloc ? &domain->below : nullptr;
    }
    return nullptr;
}

void install_python_hooks() {
    const bool is_own = is_own_allocator();  // once ours are in, it is no more
    install<Objects>(is_own);
    install<Memory>(is_own);
    install_arenas();
    install_code_watch();
    install_stats();
}

void remove_python_hooks() noexcept {
    const bool saw_objects = remove<Objects>(), saw_memory = remove<Memory>();
    if (!saw_objects || !saw_memory) recorder().give_up(kDisplaced);
    remove_arenas();
    remove_code_watch();
    remove_stats();
}

}  // namespace hiwater::interpose
