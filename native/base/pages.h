// Memory of the recorder itself: whole pages straight from the kernel, never from a heap that is being watched.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <new>
#include <utility>

#include "base/cache_lines.h"
#include "base/errno_kept.h"
#include "base/own_limit.h"
#include "base/own_ranges.h"
#include "base/raw_calls.h"
#include "base/uncopied.h"

namespace hiwater {

inline constexpr std::size_t kPage = platform::kPageBytes, kHugePage = std::size_t{2} << 20;
// Of a user's address: 47 on x86-64 and 48 on aarch64, where nothing lies higher unless a program requests it. Then
// there are kMostAddressBits, with five levels of page tables.
inline constexpr unsigned kAddressBits = 48, kMostAddressBits = 56;

constexpr std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

// Where a mapping of the recorder is to lie: far from where the kernel places those of the program. For a program may
// unmap a range with a hole in it that it made before, and the recorder's tables grow at any time. The kernel takes it
// as a hint: it has other places where there is no such address, or where it is in use. It moves with the randomised
// address of this library.
inline void* own_place(std::size_t bytes) noexcept {
    constexpr std::uintptr_t kFirst = 0x2000'0000'0000;
    static std::atomic<std::uintptr_t> used{0};
    const std::uintptr_t first = kFirst + ((reinterpret_cast<std::uintptr_t>(&used) / kPage & 0xFFFF) << 24);
    const std::size_t step = bytes < kHugePage ? kPage : kHugePage;  // the kernel moves huge pages to such places whole
    const std::uintptr_t after = used.fetch_add(round_up(bytes, step) + step - kPage, std::memory_order_relaxed);
    return reinterpret_cast<void*>(first + round_up(after, step));
}

// Returns what mmap() returns, and leaves its errno.
inline void* map_untold(std::size_t bytes) noexcept {
    void* p =
        raw::mmap(own_place(bytes), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED) platform::refuse_huge_pages(p, bytes);
    return p;
}

// Address space kept for the moment when the program has filled its own: a limit (`ulimit -v`, `ulimit -d`) that meets
// the program, which may know what to do, would else end the recording at the next table that grows. Never touched. No
// locks: the word changes as a whole.
class SpareRoom {
public:
    // Keeps it from now on. What cannot be had is tried at the next refill(): when the program unmaps something, before
    // it uses that room again.
    void keep() noexcept {
        is_wanted_.store(true, std::memory_order_relaxed);
        refill();
    }
    void refill() noexcept {
        if (!is_wanted_.load(std::memory_order_relaxed)) return;
        if ((word_.load(std::memory_order_relaxed) & kPages) == kMost) return;
        const int saved_errno = errno;
        own_limit.add(kMost * kPage);
        void* const at = map_untold(kMost * kPage);
        if (at == MAP_FAILED) {
            own_limit.remove(kMost * kPage);
        } else {
            unmap(word_.exchange(reinterpret_cast<std::uintptr_t>(at) | kMost, std::memory_order_acq_rel), kMost);
        }
        errno = saved_errno;
    }
    // Gives up that much of it for another mapping. False where there is less.
    bool give(std::size_t bytes) noexcept {
        const std::size_t wanted = round_up(bytes, kPage) / kPage;
        std::uintptr_t word = word_.load(std::memory_order_acquire);
        do {
            if ((word & kPages) < wanted) return false;
        } while (
            !word_.compare_exchange_weak(word, word - wanted, std::memory_order_acq_rel, std::memory_order_acquire));
        unmap(word, wanted);
        return true;
    }
    void drop() noexcept {
        is_wanted_.store(false, std::memory_order_relaxed);
        unmap(word_.exchange(0, std::memory_order_acq_rel), kMost);
    }
    std::size_t bytes() const noexcept { return (word_.load(std::memory_order_relaxed) & kPages) * kPage; }

private:
    static constexpr std::uintptr_t kPages = kPage - 1,
                                    kMost = 1088;  // 4.25 MiB: eight tables of small blocks, and a piece of the capture

    static void unmap(std::uintptr_t word, std::size_t most) noexcept {  // the last ones of that many pages
        const std::size_t pages = word & kPages, gone = most < pages ? most : pages;
        if (gone == 0) return;
        raw::munmap(reinterpret_cast<void*>((word & ~kPages) + (pages - gone) * kPage), gone * kPage);
        own_limit.remove(gone * kPage);
    }
    std::atomic<std::uintptr_t> word_{0};  // where it is, and how many pages
    std::atomic<bool> is_wanted_{false};
};

inline constinit SpareRoom spare_room;

// Calls map() again where there was no room, with what was spare. Returns what it returned.
template <typename Map>
void* map_with_spare(std::size_t bytes, const Map& map) noexcept {
    void* const p = map();
    return p == MAP_FAILED && errno == ENOMEM && spare_room.give(bytes) ? map() : p;
}

// Zeroed pages, touched only when used. Null when the kernel refuses.
inline void* map_pages(std::size_t bytes, Use use = Use::kept, bool may_use_spare = true) noexcept {
    own_limit.add(bytes);
    const auto map = [&] { return map_untold(bytes); };
    void* const p = may_use_spare ? map_with_spare(bytes, map) : map();
    if (p == MAP_FAILED) {
        own_limit.remove(bytes);
        return nullptr;
    }
    own_ranges.add(p, bytes, use);
    return p;
}

// Pages that this process and its children by fork share. Null when the kernel refuses.
inline void* map_shared_pages(std::size_t bytes, Use use = Use::kept) noexcept {
    own_limit.add(bytes);
    void* const p =
        raw::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        own_limit.remove(bytes);
        return nullptr;
    }
    own_ranges.add(p, bytes, use);
    return p;
}

// How many of the recorder's pages were put by touch_pages() and are mapped still, in bytes. Its large tables grow by
// these: between two counts of all its pages (own_pages.h), the change of this figure is known at any moment. While
// pages come or go, it lies between least() and most().
class PutPages {
public:
    void begin_putting(std::size_t bytes) noexcept {
        const std::int64_t now = most_.fetch_add(static_cast<std::int64_t>(bytes)) + static_cast<std::int64_t>(bytes);
        std::int64_t highest = highest_.load();
        while (highest < now && !highest_.compare_exchange_weak(highest, now)) {
        }
    }
    void end_putting(std::size_t bytes) noexcept { least_.fetch_add(static_cast<std::int64_t>(bytes)); }
    void begin_removing(std::size_t bytes) noexcept { least_.fetch_sub(static_cast<std::int64_t>(bytes)); }
    void end_removing(std::size_t bytes) noexcept { most_.fetch_sub(static_cast<std::int64_t>(bytes)); }

    std::int64_t least() const noexcept { return least_.load(); }
    std::int64_t most() const noexcept { return most_.load(); }
    // Of most(), since the last call: a table that grows has its pages twice for a moment.
    std::int64_t read_and_reset_highest() noexcept {
        const std::int64_t now = most(), highest = highest_.exchange(now);
        return highest > now ? highest : now;
    }

private:
    std::atomic<std::int64_t> least_{0}, most_{0}, highest_{0};
};

inline constinit PutPages put_pages;

// Puts pages where all will be written soon: where the kernel can, with one call instead of a fault for each. Returns
// whether they are there. `fresh_bytes` of them had no page before.
inline bool touch_pages(void* p, std::size_t bytes, std::size_t fresh_bytes) noexcept {
    const ErrnoKept kept;
    put_pages.begin_putting(fresh_bytes);
    const bool is_done = platform::put_pages(p, bytes);
    is_done ? put_pages.end_putting(fresh_bytes) : put_pages.end_removing(fresh_bytes);
    return is_done;
}

// Makes memory zero whose pages were mapped by map_pages(). Whole pages go back to the kernel: to write them would cost
// the child of a fork a copy of each.
inline void zero_pages(void* p, std::size_t bytes) noexcept {
    const ErrnoKept kept;
    char* const at = static_cast<char*>(p);
    char* const first = reinterpret_cast<char*>(round_up(reinterpret_cast<std::uintptr_t>(at), kPage));
    char* const last = reinterpret_cast<char*>(reinterpret_cast<std::uintptr_t>(at + bytes) & ~(kPage - 1));
    if (first >= last || !platform::give_back(first, static_cast<std::size_t>(last - first))) {
        __builtin_memset(at, 0, bytes);
        return;
    }
    __builtin_memset(at, 0, static_cast<std::size_t>(first - at));
    __builtin_memset(last, 0, static_cast<std::size_t>(at + bytes - last));
}

// As map_pages(), for what its thread's events read: not at the start of its pages, which are never unmapped.
inline void* map_apart(std::size_t bytes, const void* owner) noexcept {
    const std::size_t before = line_for(owner);
    void* const p = map_pages(round_up(before + bytes, kPage));
    return p == nullptr ? nullptr : static_cast<char*>(p) + before;
}

inline void unmap_pages(void* p, std::size_t bytes) noexcept {
    if (p == nullptr) return;
    own_ranges.remove(p);
    raw::munmap(p, bytes);
    own_limit.remove(bytes);
}

// An array that lives in its own pages and doubles; elements are plain bytes. Not for many threads. The first element
// is not where its page begins (cache_lines.h).
template <typename T>
class PageVector : Uncopied {
    static_assert(alignof(T) <= kLine);

public:
    ~PageVector() { reset(); }

    std::size_t size() const { return size_; }
    T& operator[](std::size_t i) { return data_[i]; }
    const T& operator[](std::size_t i) const { return data_[i]; }
    T* data() { return data_; }
    T* begin() { return data_; }
    T* end() { return data_ + size_; }
    const T* begin() const { return data_; }
    const T* end() const { return data_ + size_; }

    // Grows or shrinks to `n` elements, new ones zero. Throws bad_alloc, the array then is as before.
    void resize(std::size_t n) {
        make_room(n);
        for (std::size_t i = n; i < size_; ++i) data_[i] = T{};
        size_ = n;
    }
    // Room for `n` elements. Throws bad_alloc, the array then is as before.
    void make_room(std::size_t n) {
        if (n > capacity_) reserve(n < 2 * capacity_ ? 2 * capacity_ : n);
    }
    // Grows to `n` elements, new ones zero, with no room for more. Throws bad_alloc, the array then is as before.
    void grow_to(std::size_t n) {
        if (n > capacity_) reserve(n);
        size_ = n;
    }
    // Pages for the elements up to `to`, which will be written at random. Those up to `from` have theirs.
    void put_pages_for(std::size_t from, std::size_t to) noexcept {
        if (capacity_bytes() >= kHugePage) platform::ask_for_huge_pages(pages(), capacity_bytes());
        const std::size_t first = round_up(offset() + from * sizeof(T), kPage),
                          last = round_up(offset() + to * sizeof(T), kPage);
        if (first < last && touch_pages(pages() + first, last - first, last - first)) put_bytes_ += last - first;
    }
    void push_back(const T& value) {
        make_room(size_ + 1);
        data_[size_++] = value;
    }
    void swap(PageVector& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(capacity_, other.capacity_);
        std::swap(put_bytes_, other.put_bytes_);
    }
    void reset() noexcept {
        put_pages.begin_removing(put_bytes_);
        unmap_pages(pages(), capacity_bytes());
        put_pages.end_removing(put_bytes_);
        data_ = nullptr;
        size_ = capacity_ = put_bytes_ = 0;
    }
    std::size_t capacity_bytes() const { return round_up(offset() + capacity_ * sizeof(T), kPage); }

private:
    std::size_t offset() const noexcept { return reinterpret_cast<std::uintptr_t>(data_) % kPage; }
    char* pages() const noexcept { return reinterpret_cast<char*>(data_) - offset(); }
    void reserve(std::size_t n) {
        const std::size_t before = data_ == nullptr ? line_for(this) : offset();
        const std::size_t bytes = round_up(before + n * sizeof(T), kPage);
        void* grown = data_ == nullptr ? map_pages(bytes, Use::tables) : move(bytes);
        if (grown == nullptr) throw std::bad_alloc();
        data_ = reinterpret_cast<T*>(static_cast<char*>(grown) + before);
        capacity_ = (bytes - before) / sizeof(T);
    }
    void* move(std::size_t bytes) noexcept {
        own_limit.add(bytes);  // both for a moment, as the kernel may need both
        own_ranges.remove(pages());
        void* moved = map_with_spare(bytes, [&] { return remapped(bytes); });
        const bool is_moved = moved != MAP_FAILED;
        own_ranges.add(is_moved ? moved : pages(), is_moved ? bytes : capacity_bytes(), Use::tables);
        own_limit.remove(is_moved ? capacity_bytes() : bytes);
        return is_moved ? moved : nullptr;
    }
    // What mmap() returns, where there is room behind it or at a place of our own.
    void* remapped(std::size_t bytes) noexcept {
        void* const grown = platform::lengthen(pages(), capacity_bytes(), bytes);
        if (grown != MAP_FAILED) return grown;
        void* const place = map_untold(bytes);
        if (place == MAP_FAILED) return place;
        void* const moved = platform::move_to(place, pages(), capacity_bytes(), bytes);
        if (moved == MAP_FAILED) {
            const ErrnoKept kept;
            raw::munmap(place, bytes);
        }
        return moved;
    }
    T* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t capacity_ = 0;
    std::size_t put_bytes_ = 0;  // by touch()
};

// Fixed-size pieces for the standard containers the core uses; freed pieces are used again, pages are given back by
// reset().
class PiecePool : Uncopied {
public:
    static constexpr std::size_t kLargest = 128;  // bytes
    explicit PiecePool(std::size_t piece_bytes = kLargest) : piece_bytes_(round_up(piece_bytes, 16)) {}
    ~PiecePool() { reset(); }

    void* take() {
        if (free_ == nullptr) refill();
        Piece* piece = free_;
        free_ = piece->next;
        return piece;
    }
    void give(void* p) noexcept {
        auto* piece = static_cast<Piece*>(p);
        piece->next = free_;
        free_ = piece;
    }
    void reset() noexcept {
        while (chunks_ != nullptr) {
            Piece* chunk = chunks_;
            chunks_ = chunk->next;
            unmap_pages(chunk, kChunkBytes);
        }
        free_ = nullptr;
    }

private:
    struct Piece {
        Piece* next;
    };
    static constexpr std::size_t kChunkBytes = 16 * kPage;

    void refill() {
        auto* chunk = static_cast<char*>(map_pages(kChunkBytes, Use::tables));
        if (chunk == nullptr) throw std::bad_alloc();
        reinterpret_cast<Piece*>(chunk)->next = chunks_;
        chunks_ = reinterpret_cast<Piece*>(chunk);
        for (std::size_t at = piece_bytes_; at + piece_bytes_ <= kChunkBytes; at += piece_bytes_) give(chunk + at);
    }
    std::size_t piece_bytes_;
    Piece* free_ = nullptr;
    Piece* chunks_ = nullptr;
};

// A standard allocator over one pool, for maps.
template <typename T>
struct PieceAllocator {
    using value_type = T;
    PiecePool* pool;
    PieceAllocator(PiecePool* p) : pool(p) {}  // NOLINT(google-explicit-constructor): a map is made of its pool
    template <typename U>
    PieceAllocator(const PieceAllocator<U>& other) : pool(other.pool) {}  // NOLINT(google-explicit-constructor): rebind
    T* allocate(std::size_t n) {
        static_assert(sizeof(T) <= PiecePool::kLargest);
        if (n != 1) throw std::bad_alloc();
        return static_cast<T*>(pool->take());
    }
    void deallocate(T* p, std::size_t) noexcept { pool->give(p); }
    template <typename U>
    bool operator==(const PieceAllocator<U>& other) const {
        return pool == other.pool;
    }
};

template <typename Key, typename Value>
using PieceMap = std::map<Key, Value, std::less<>, PieceAllocator<std::pair<const Key, Value>>>;

}  // namespace hiwater
