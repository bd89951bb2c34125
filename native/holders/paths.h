// The ways that lead from a root to objects: a tree of steps. Objects that are reached by the same steps are one path,
// so there are about as many paths as the program's code has ways to hold something, and not as many as it has objects.
//
//   path 0 is above all roots. Every other one has a parent, a label (which variable, attribute, item …) and the type
//   of its objects. Objects that are referred to once are apart from those that are referred to more often: if others
//   refer to a few of a path's objects, that must not make the path's holder lose the others (reference_graph.h). A
//   step that occurs among a path's ancestors leads back to that ancestor: a linked list of any length has one path.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/open_table.h"
#include "base/pages.h"
#include "holders/python_heap.h"

namespace hiwater::holders {

constexpr bool is_root(hw_label_kind kind) noexcept { return kind < HW_VARIABLE || kind == HW_INTERPRETER; }

struct Label {
    hw_label_kind kind;
    const void* text;
    bool operator==(const Label&) const = default;
};

struct Path {
    std::uint32_t parent;
    hw_label_kind kind;
    const void* text;
    const void* type;  // null for a root
    std::uint64_t objects, bytes, retained_bytes;
    std::uint32_t dominator;  // the path without which nothing would hold these; 0: none
    std::uint16_t depth;
    bool is_shared;  // its objects are referred to more than once
    bool is_namespace() const noexcept { return kind == HW_MODULE || kind == HW_NAMESPACE; }
};

class Paths : Uncopied {
public:
    static constexpr std::uint32_t kMost = 1 << 20, kTop = 0;

    void init() {
        paths_.push_back({});
        paths_[0].depth = 0;
    }

    // The path of objects of this type that are referred to in this way from those of `parent`. Throws bad_alloc.
    std::uint32_t step(std::uint32_t parent, Label label, const void* type, bool is_shared) {
        const Slot wanted{parent, label.kind, label.text, type, is_shared, 0};
        const auto is_it = [&](const Slot& slot) { return slot.is_same(wanted); };
        if (const Slot* known = index_.find(wanted.hash(), is_it)) return known->path;
        const std::uint32_t path = place_of(parent, label, type, is_shared);
        Slot added = wanted;
        added.path = path;
        index_.put(added, is_it);
        return path;
    }

    std::size_t size() const noexcept { return paths_.size(); }
    Path& operator[](std::uint32_t path) { return paths_[path]; }
    const Path& operator[](std::uint32_t path) const { return paths_[path]; }

private:
    struct Slot {
        std::uint32_t parent;
        hw_label_kind kind;
        const void* text;
        const void* type;
        bool is_shared;
        std::uint32_t path;  // 0: free
        bool is_free() const noexcept { return path == 0; }
        std::uint64_t hash() const noexcept {
            const auto word = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
            return mix(word(text) + mix(word(type) + mix(std::uint64_t{parent} << 8 | std::uint64_t{is_shared} << 7 |
                                                         static_cast<std::uint64_t>(kind))));
        }
        bool is_same(const Slot& other) const noexcept {
            return parent == other.parent && kind == other.kind && text == other.text && type == other.type &&
                   is_shared == other.is_shared;
        }
    };

    bool is_same_step(std::uint32_t a, std::uint32_t b) const {
        return paths_[a].kind == paths_[b].kind && paths_[a].text == paths_[b].text && paths_[a].type == paths_[b].type;
    }

    // Among the ancestors, or a new one. The namespace of an object is no way back to that of another one that holds
    // it.
    std::uint32_t place_of(std::uint32_t parent, Label label, const void* type, bool is_shared) {
        if (!is_root(label.kind))
            for (std::uint32_t at = parent; at != kTop; at = paths_[at].parent) {
                const Path& path = paths_[at];
                if (path.kind == label.kind && path.text == label.text && path.type == type &&
                    path.is_shared == is_shared && (label.kind != HW_NAMESPACE || is_same_step(path.parent, parent)))
                    return at;
            }
        // Deeper, or of too many: the objects count with those that refer to them.
        if (parent != kTop && (paths_[parent].depth == kMostSteps || paths_.size() >= kMost)) return parent;
        Path fresh{};
        fresh.parent = parent;
        fresh.kind = label.kind;
        fresh.text = label.text;
        fresh.type = type;
        fresh.depth = static_cast<std::uint16_t>(paths_[parent].depth + 1);
        fresh.is_shared = is_shared;
        paths_.push_back(fresh);
        return static_cast<std::uint32_t>(paths_.size() - 1);
    }

    static constexpr std::uint16_t kMostSteps = 64;
    PageVector<Path> paths_;
    OpenTable<Slot> index_;
};

}  // namespace hiwater::holders
