#include "interpose/kept_pointers.h"

#include <link.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "base/pages.h"
#include "base/raw_calls.h"
#include "residency/page_flags.h"
#include "session/recorder.h"
#include "interpose/allocators.h"
#include "interpose/modules.h"

namespace hiwater::interpose {

namespace {

using Address = std::uintptr_t;

bool is_exchanged(const Hook& hook) noexcept { return hook.of != Hook::Of::process && *hook.real != nullptr; }

// --- libffi

// What a function is exchanged for. An entry, once in, is good for the life of the process: its hook passes on after
// the recording.
class Exchanges {
public:
    void add(Address function, Address ours) noexcept {
        for (std::size_t i = first(function);; ++i) {
            Entry& entry = entries_[i % kPlaces];
            const Address found = entry.function.load(std::memory_order_relaxed);
            if (found == function) return;
            if (found != 0) continue;
            if (++used_ > kPlaces / 2) return;
            entry.ours.store(ours, std::memory_order_relaxed);
            return entry.function.store(function, std::memory_order_release);
        }
    }
    Address of(Address function) const noexcept {
        for (std::size_t i = first(function);; ++i) {
            const Entry& entry = entries_[i % kPlaces];
            const Address found = entry.function.load(std::memory_order_acquire);
            if (found == function) return entry.ours.load(std::memory_order_relaxed);
            if (found == 0) return function;
        }
    }

private:
    static constexpr std::size_t kPlaces = 1024;
    struct Entry {
        std::atomic<Address> function, ours;
    };
    static std::size_t first(Address function) noexcept { return function >> 4; }

    Entry entries_[kPlaces] = {};
    std::size_t used_ = 0;
};
constinit Exchanges g_exchanges;

constexpr int kMostLibraries = 2;  // the system's libffi, and one that a package brought
using ForeignCall = void (*)(void* interface, Address function, void* result, void** arguments);
ForeignCall g_foreign_call[kMostLibraries];

template <int kNumber>
void hook_foreign_call(void* interface, Address function, void* result, void** arguments) {
    g_foreign_call[kNumber](interface, recording() ? g_exchanges.of(function) : function, result, arguments);
}

int find_foreign_call(dl_phdr_info* info, std::size_t, void*) {
    Module module;
    if (is_linker(info) || !read_module(info, &module)) return 0;
    const auto call = reinterpret_cast<ForeignCall>(function_in(module, "ffi_call"));
    if (call == nullptr) return 0;
    for (ForeignCall& known : g_foreign_call) {
        if (known == call || call == hook_foreign_call<0> || call == hook_foreign_call<1>) return 0;
        if (known == nullptr) return known = call, 0;
    }
    return 1;
}

// --- data of modules

struct Exchange {
    Address from, to;
};

struct Search {
    std::vector<Exchange> exchanges;  // by what is looked for
    std::vector<std::pair<Address, Address>> segments;
    residency::PageFlags pages{Pagemap::Kind::written};
};

// Our memory as the kernel reads and writes it: a page that the program closed is an error, and not a fault.
std::size_t read_words(Address at, Address* words, std::size_t bytes) noexcept {
    const iovec there{reinterpret_cast<void*>(at), bytes};
    const ssize_t n = raw::read_own(words, bytes, &there, 1);
    return n < 0 ? 0 : static_cast<std::size_t>(n) / sizeof(Address);
}

void write_word(Address at, Address word) noexcept {
    const iovec here{&word, sizeof word}, there{reinterpret_cast<void*>(at), sizeof word};
    (void)!::process_vm_writev(::getpid(), &here, 1, &there, 1, 0);
}

constexpr std::size_t kPagesAtOnce = 8;

// The words of [start, end), which is within kPagesAtOnce pages.
void exchange_in_pages(const Search& search, Address start, Address end) noexcept {
    Address words[kPagesAtOnce * kPage / sizeof(Address)];
    const std::size_t count = read_words(start, words, end - start);
    const Address lowest = search.exchanges.front().from, span = search.exchanges.back().from - lowest;
    for (std::size_t i = 0; i < count; ++i) {
        if (words[i] - lowest > span) continue;
        const auto found = std::lower_bound(search.exchanges.begin(), search.exchanges.end(), words[i],
                                            [](const Exchange& e, Address function) { return e.from < function; });
        if (found->from == words[i]) write_word(start + i * sizeof(Address), found->to);
    }
}

// Goes over the pages that the program has written to.
void exchange_in_segment(Search& search, Address start, Address end) noexcept {
    for (Address at = search.pages.next_present(start, end); at < end;) {
        const Address first = at, behind = std::min(end, first + kPagesAtOnce * kPage);
        do at += kPage;
        while (at < behind && search.pages.next_present(at, at + kPage) == at);
        exchange_in_pages(search, std::max(start, first), std::min(end, at));
        at = search.pages.next_present(at, end);
    }
}

// Neither the linker nor CPython's own library, whose data are most of a small program's, keeps what is exchanged.
bool keeps_no_functions(const dl_phdr_info* info) noexcept {
    return is_linker(info) || ::strncmp(file_name_of(info), "libpython", 9) == 0;
}

int add_segments(dl_phdr_info* info, std::size_t, void* data) {
    Search& search = *static_cast<Search*>(data);
    if (info->dlpi_addr == own_base() || keeps_no_functions(info) || is_allocator_library(info->dlpi_addr)) return 0;
    for (std::size_t i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr) & segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) == 0) continue;
        const Address start = (info->dlpi_addr + segment.p_vaddr + sizeof(Address) - 1) & ~(sizeof(Address) - 1);
        search.segments.emplace_back(start, info->dlpi_addr + segment.p_vaddr + segment.p_memsz);
    }
    return 0;
}

}  // namespace

void add_foreign_call_hooks(std::vector<Hook>* hooks) {
    static LoaderCounts last;
    if (const LoaderCounts now = loader_counts(); now != last) {
        ::dl_iterate_phdr(find_foreign_call, nullptr);
        last = now;
    }
    const ForeignCall ours[kMostLibraries] = {hook_foreign_call<0>, hook_foreign_call<1>};
    for (int i = 0; i < kMostLibraries && g_foreign_call[i] != nullptr; ++i)
        hooks->push_back({"ffi_call", reinterpret_cast<void*>(ours[i]), reinterpret_cast<void**>(&g_foreign_call[i]),
                          Hook::Of::process, false});
}

void exchange_foreign_calls(const std::vector<Hook>& hooks) noexcept {
    for (const Hook& hook : hooks)
        if (is_exchanged(hook))
            g_exchanges.add(reinterpret_cast<Address>(*hook.real), reinterpret_cast<Address>(hook.ours));
}

void exchange_in_data(const std::vector<Hook>& hooks, bool put_in) noexcept {
    try {
        Search search;
        for (const Hook& hook : hooks) {
            const auto real = reinterpret_cast<Address>(*hook.real), ours = reinterpret_cast<Address>(hook.ours);
            if (is_exchanged(hook)) search.exchanges.push_back(put_in ? Exchange{real, ours} : Exchange{ours, real});
        }
        if (search.exchanges.empty()) return;
        std::sort(search.exchanges.begin(), search.exchanges.end(),
                  [](const Exchange& a, const Exchange& b) { return a.from < b.from; });
        if (search.pages.works()) ::dl_iterate_phdr(add_segments, &search);
        std::sort(search.segments.begin(), search.segments.end());  // the kernel finds pages of neighbours in one call
        for (const auto& [start, end] : search.segments) exchange_in_segment(search, start, end);
    } catch (const std::bad_alloc&) {
        return;  // those pointers are not exchanged
    }
}

}  // namespace hiwater::interpose
