// Which addresses are objects, and a number for each.
//
// A bitmap for each stretch of 4 MiB that has objects: one bit for each 16 bytes, where CPython's heap starts its
// objects; or, where an object starts elsewhere (static ones may), one for each 8 bytes. 8 MiB of bitmap describe 1 GiB
// that is full of objects. Once the set is sealed, an object's number is its rank: how many objects of the set have
// lower places, by stretch and address.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/open_table.h"
#include "base/pages.h"

namespace hiwater::holders {

class ObjectSet : Uncopied {
public:
    static constexpr std::uint32_t kNone = ~std::uint32_t{0};

    ~ObjectSet() {
        for (Stretch& stretch : stretches_) unmap_pages(stretch.words, stretch.bytes());
    }

    // Whether the object was not there yet. An address that no object can have is never there. Throws bad_alloc.
    bool add(std::uintptr_t address) {
        if (address % kFine != 0) return false;
        Stretch& stretch = stretch_for(address);
        if (stretch.shift == kCoarseShift && address % kCoarse != 0) refine(stretch);
        std::uint64_t& word = stretch.words[place_in(stretch, address) / 64];
        const std::uint64_t bit = std::uint64_t{1} << place_in(stretch, address) % 64;
        if ((word & bit) != 0) return false;
        word |= bit;
        ++size_;
        return true;
    }

    bool contains(std::uintptr_t address) const noexcept {
        const Stretch* stretch = find(address);
        return stretch != nullptr && is_in(*stretch, address);
    }

    std::size_t size() const noexcept { return size_; }

    // Numbers the objects. None may be added afterwards. Throws bad_alloc.
    void seal() {
        std::uint32_t before = 0;
        for (Stretch& stretch : stretches_) {
            stretch.first_group = static_cast<std::uint32_t>(ranks_.size());
            for (std::size_t group = 0; group < stretch.groups(); ++group) {
                ranks_.push_back(before);
                for (std::size_t i = 0; i < kGroupWords; ++i)
                    before += static_cast<std::uint32_t>(std::popcount(stretch.words[group * kGroupWords + i]));
            }
        }
    }

    // The number of an object; kNone where the address is not in the set.
    std::uint32_t number_of(std::uintptr_t address) const noexcept {
        const Stretch* stretch = find(address);
        if (stretch == nullptr || !is_in(*stretch, address)) return kNone;
        const std::size_t place = place_in(*stretch, address), word = place / 64, group = word / kGroupWords;
        std::uint32_t number = ranks_[stretch->first_group + group];
        for (std::size_t i = group * kGroupWords; i < word; ++i)
            number += static_cast<std::uint32_t>(std::popcount(stretch->words[i]));
        const std::uint64_t below = (std::uint64_t{1} << place % 64) - 1;
        return number + static_cast<std::uint32_t>(std::popcount(stretch->words[word] & below));
    }

    template <typename Visit>  // visit(address, number), in the order of the numbers
    void each(Visit visit) const {
        std::uint32_t number = 0;
        for (const Stretch& stretch : stretches_)
            for (std::size_t i = 0; i < stretch.bytes() / sizeof(std::uint64_t); ++i)
                for (std::uint64_t rest = stretch.words[i]; rest != 0; rest &= rest - 1) {
                    const auto bit = static_cast<std::size_t>(std::countr_zero(rest));
                    visit(stretch.start + ((i * 64 + bit) << stretch.shift), number++);
                }
    }

private:
    static constexpr unsigned kStretchShift = 22, kCoarseShift = 4, kFineShift = 3;
    static constexpr std::uintptr_t kStretchBytes = std::uintptr_t{1} << kStretchShift, kCoarse = 16, kFine = 8;
    static constexpr std::size_t kGroupWords = 8;  // words that share a rank

    struct Stretch {
        std::uintptr_t start;
        std::uint64_t* words;
        unsigned shift;
        std::uint32_t first_group;
        std::size_t bytes() const noexcept { return (kStretchBytes >> shift) / 8; }
        std::size_t groups() const noexcept { return bytes() / sizeof(std::uint64_t) / kGroupWords; }
    };
    struct Slot {
        std::uint64_t key;  // the stretch's number in the address space, plus 1
        std::uint32_t index;
        bool is_free() const noexcept { return key == 0; }
        std::uint64_t hash() const noexcept { return mix(key); }
    };

    static std::size_t place_in(const Stretch& stretch, std::uintptr_t address) noexcept {
        return (address % kStretchBytes) >> stretch.shift;
    }
    static bool is_in(const Stretch& stretch, std::uintptr_t address) noexcept {
        if ((address & ((std::uintptr_t{1} << stretch.shift) - 1)) != 0) return false;
        const std::size_t place = place_in(stretch, address);
        return (stretch.words[place / 64] >> place % 64 & 1) != 0;
    }

    const Stretch* find(std::uintptr_t address) const noexcept {
        const std::uint64_t key = (address >> kStretchShift) + 1;
        if (key != last_key_) {
            const Slot* slot = index_.find(mix(key), [key](const Slot& it) { return it.key == key; });
            if (slot == nullptr) return nullptr;
            last_key_ = key;
            last_ = slot->index;
        }
        return &stretches_[last_];
    }
    Stretch& stretch_for(std::uintptr_t address) {
        if (const Stretch* known = find(address)) return const_cast<Stretch&>(*known);
        Stretch fresh{address & ~(kStretchBytes - 1), nullptr, kCoarseShift, 0};
        fresh.words = new_words(fresh);
        stretches_.push_back(fresh);
        const std::uint64_t key = (address >> kStretchShift) + 1;
        index_.put({key, static_cast<std::uint32_t>(stretches_.size() - 1)},
                   [key](const Slot& it) { return it.key == key; });
        return stretches_[stretches_.size() - 1];
    }
    static std::uint64_t* new_words(const Stretch& stretch) {
        auto* const words = static_cast<std::uint64_t*>(map_pages(stretch.bytes(), Use::tables));
        if (words == nullptr) throw std::bad_alloc();
        return words;
    }
    // From a bit for 16 bytes to a bit for 8.
    static void refine(Stretch& stretch) {
        Stretch finer{stretch.start, nullptr, kFineShift, 0};
        finer.words = new_words(finer);
        for (std::size_t i = 0; i < stretch.bytes() / sizeof(std::uint64_t); ++i)
            for (std::uint64_t rest = stretch.words[i]; rest != 0; rest &= rest - 1) {
                const std::size_t place = 2 * (i * 64 + static_cast<std::size_t>(std::countr_zero(rest)));
                finer.words[place / 64] |= std::uint64_t{1} << place % 64;
            }
        unmap_pages(stretch.words, stretch.bytes());
        stretch = finer;
    }

    PageVector<Stretch> stretches_;
    OpenTable<Slot> index_;
    PageVector<std::uint32_t> ranks_;  // for each group of words: objects before it
    std::size_t size_ = 0;
    mutable std::uint64_t last_key_ = 0;  // objects that are looked up one after the other often lie near each other
    mutable std::uint32_t last_ = 0;
};

}  // namespace hiwater::holders
