// One traversal of a heap of objects: by which path each is held, how many and how large the objects of a path are, and
// who allocated them.
//
// `Heap` is what is traversed: CPython's (python_heap.h), or a test's. It has
//   each_tracked(visit)                 visit(address): every object that may have references and is listed by the
//                                       collector
//   each_root(visit)                    visit(root, label, address): what is held from outside; with the label `none`
//                                       the object is the root's own
//   references(address, is_namespace, visit)   visit(label, address): what an object refers to, once for each reference
//   hidden(address, visit)              visit(address): what else it may refer to
//   is_container(address)               whether it may have references
//   is_listed(address)                  whether each_tracked() visits it
//   is_immortal(address)                whether nothing frees it: it is nobody's
//   references_to(address)              its reference count
//   type_of(address)                    compared, and stored
//   know_objects(objects)               called once all objects are known
//   measure(address, visit)             visit(account, bytes): its blocks, each once in a traversal
//
// Nothing is changed in the heap. Own memory: 4 bytes for each object, the bitmap of the set, the paths, and a queue of
// a fixed size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "holders/object_set.h"
#include "holders/paths.h"
#include "holders/reference_graph.h"

namespace hiwater::holders {

// What the objects of a path and their buffers take, by the account of their blocks. Account 0: not known who allocated
// it.
struct Holding {
    std::uint32_t path, account;
    std::uint64_t blocks, bytes;
    bool is_free() const noexcept { return path == 0; }
    std::uint64_t hash() const noexcept { return mix(std::uint64_t{path} << 32 | account); }
};

template <typename Heap>
class Traversal : Uncopied {
public:
    explicit Traversal(Heap& heap) : heap_(heap) {}

    // All of it. Throws bad_alloc.
    void run() {
        paths_.init();
        find_objects();
        objects_.seal();
        heap_.know_objects(objects_);
        words_.resize(objects_.size());
        heap_.each_root([this](Label root, Label label, std::uintptr_t address) { start_at(root, label, address); });
        follow();
        reach_hidden();
        follow();
        count_references_among_unreached();
        start_at_unreached(HW_C_CODE, [this](std::uintptr_t address, std::uint32_t known) {
            return heap_.references_to(address) > known;
        });
        follow();
        start_at_unreached(HW_GARBAGE, [](std::uintptr_t, std::uint32_t) { return true; });
        follow();
        graph_.dominate(paths_);
    }

    const Paths& paths() const noexcept { return paths_; }
    const ReferenceGraph& graph() const noexcept { return graph_; }
    std::size_t objects() const noexcept { return objects_.size(); }
    std::uint64_t references() const noexcept { return references_; }
    template <typename Visit>  // visit(holding)
    void each_holding(Visit visit) const {
        holdings_.each(visit);
    }
    // The path of an object, 0 where it is not known.
    std::uint32_t path_of(std::uintptr_t address) const noexcept {
        const std::uint32_t number = objects_.number_of(address);
        return number == ObjectSet::kNone ? 0 : words_[number] & kPath;
    }

private:
    // An object's word: its path, or, as long as it has not been reached, how many of those not reached refer to it.
    static constexpr std::uint32_t kReached = 1u << 31, kWaiting = 1u << 29,
                                   kPath = kWaiting - 1;  // two levels wait: bits 29 and 30
    static constexpr std::size_t kQueued = std::size_t{256} << 10, kMostHoldings = std::size_t{1} << 20;

    void find_objects() {
        PageVector<std::uintptr_t>
            unlisted;  // containers that the collector does not list, whose references are still to be read
        const auto found = [&](std::uintptr_t address) {
            if (objects_.add(address) && heap_.is_container(address) && !heap_.is_listed(address))
                unlisted.push_back(address);
        };
        const auto read = [&](std::uintptr_t address) {
            heap_.references(address, false, [&](Label, std::uintptr_t to) { found(to); });
        };
        const auto read_unlisted = [&] {
            while (unlisted.size() != 0) {
                const std::uintptr_t address = unlisted[unlisted.size() - 1];
                unlisted.resize(unlisted.size() - 1);
                read(address);
            }
        };
        heap_.each_tracked([&](std::uintptr_t address) {
            objects_.add(address);
            read(address);
            read_unlisted();
        });
        heap_.each_root([&](Label, Label, std::uintptr_t address) {
            found(address);
            read_unlisted();
        });
    }

    void start_at(Label root, Label label, std::uintptr_t address) {
        const std::uint32_t from = root_path(root);
        if (label.kind != HW_NONE) return reach(from, label, address);
        const std::uint32_t number = objects_.number_of(address);
        if (number != ObjectSet::kNone && (words_[number] & kReached) == 0) assign(from, address, number);
    }
    std::uint32_t root_path(Label root) {
        const std::uint32_t path = paths_.step(Paths::kTop, root, nullptr, false);
        graph_.add(Paths::kTop, path);
        return path;
    }

    // An object of path `from` refers to the one at the address.
    void reach(std::uint32_t from, Label label, std::uintptr_t address) {
        const std::uint32_t number = objects_.number_of(address);
        if (number == ObjectSet::kNone) return;
        ++references_;
        if ((words_[number] & kReached) == 0) {
            if (heap_.is_immortal(address)) {
                from = immortal_ = root_path({HW_INTERPRETER, nullptr});
                label = {HW_ITEM, nullptr};
            }
            const bool is_shared = heap_.references_to(address) > 1;
            assign(paths_.step(from, label, heap_.type_of(address), is_shared), address, number);
        }
        const std::uint32_t path = words_[number] & kPath;
        if (immortal_ == 0 || paths_[path].parent != immortal_ || from == immortal_) graph_.add(from, path);
    }

    void assign(std::uint32_t path, std::uintptr_t address, std::uint32_t number) {
        words_[number] = kReached | path;
        ++paths_[path].objects;
        heap_.measure(address, [&](std::uint32_t account, std::uint64_t bytes) {
            paths_[path].bytes += bytes;
            hold({path, account, 1, bytes});
        });
        if (!heap_.is_container(address)) return;
        if (next_.size() < kQueued) {
            next_.push_back(address);
        } else {
            words_[number] |= kWaiting << (level_ + 1) % 2;
            is_full_ = true;
        }
    }

    void hold(Holding part) {
        if (holdings_.size() >= kMostHoldings) part.account = 0;
        const auto is_it = [&](const Holding& other) {
            return other.path == part.path && other.account == part.account;
        };
        if (const Holding* known = holdings_.find(part.hash(), is_it)) {
            auto* const sum = const_cast<Holding*>(known);
            sum->blocks += part.blocks;
            sum->bytes += part.bytes;
        } else {
            holdings_.put(part, is_it);
        }
    }

    // Level by level, so that the first way to an object is a shortest one. Where a level has too many objects for the
    // queue, the others are found by their words.
    void follow() {
        PageVector<std::uintptr_t> level;
        while (next_.size() != 0) {
            level.swap(next_);
            next_.resize(0);
            ++level_;
            const bool was_full = std::exchange(is_full_, false);
            for (const std::uintptr_t address : level) follow_from(address, objects_.number_of(address));
            if (!was_full) continue;
            const std::uint32_t waiting = kWaiting << level_ % 2;
            objects_.each([&](std::uintptr_t address, std::uint32_t number) {
                if ((words_[number] & waiting) == 0) return;
                words_[number] &= ~waiting;
                follow_from(address, number);
            });
        }
    }
    void follow_from(std::uintptr_t address, std::uint32_t number) {
        const std::uint32_t path = words_[number] & kPath;
        heap_.references(address, paths_[path].is_namespace(),
                         [&](Label label, std::uintptr_t to) { reach(path, label, to); });
    }

    bool is_unreached(std::uint32_t number) const noexcept { return (words_[number] & kReached) == 0; }

    // What C code keeps in an object without saying so to the collector.
    void reach_hidden() {
        objects_.each([&](std::uintptr_t address, std::uint32_t number) {
            if (is_unreached(number)) return;
            heap_.hidden(address, [&](std::uintptr_t to) {
                const std::uint32_t other = objects_.number_of(to);
                if (other != ObjectSet::kNone && is_unreached(other))
                    reach(words_[number] & kPath, {HW_ITEM, nullptr}, to);
            });
        });
    }

    void count_references_among_unreached() {
        objects_.each([&](std::uintptr_t address, std::uint32_t number) {
            if (!is_unreached(number) || !heap_.is_container(address)) return;
            heap_.references(address, false, [&](Label, std::uintptr_t to) {
                const std::uint32_t other = objects_.number_of(to);
                if (other != ObjectSet::kNone && is_unreached(other) && words_[other] < kPath) ++words_[other];
            });
        });
    }

    // Objects that nothing has reached, where `is_root(address, known references)`. All of them are roots at once, and
    // lie on one level.
    template <typename IsRoot>
    void start_at_unreached(hw_label_kind kind, IsRoot is_root) {
        objects_.each([&](std::uintptr_t address, std::uint32_t number) {
            if (!is_unreached(number) || !is_root(address, words_[number])) return;
            const std::uint32_t root = root_path({kind, nullptr});
            const bool is_shared = heap_.references_to(address) > 1;
            const std::uint32_t path = paths_.step(root, {HW_ITEM, nullptr}, heap_.type_of(address), is_shared);
            assign(path, address, number);
            graph_.add(root, path);
        });
    }

    Heap& heap_;
    ObjectSet objects_;
    PageVector<std::uint32_t> words_;  // by number
    Paths paths_;
    ReferenceGraph graph_;
    OpenTable<Holding> holdings_;
    PageVector<std::uintptr_t> next_;
    bool is_full_ = false;
    unsigned level_ = 0;
    std::uint32_t immortal_ = 0;  // the root path of immortal objects, once there is one
    std::uint64_t references_ = 0;
};

}  // namespace hiwater::holders
