// The interpreter's heap, as a traversal reads it (traversal.h), with the blocks that belong to each object.
#pragma once

#include <cstdint>
#include <cstring>

#include "heap/live_table.h"
#include "holders/object_set.h"
#include "holders/paths.h"
#include "holders/python_heap.h"
#include "holders/result.h"

namespace hiwater::holders {

// `FindBlock`: find_block(address) is the recorded block that starts there; account 0 where none does.
template <typename FindBlock>
class InterpreterHeap : Uncopied {
public:
    InterpreterHeap(const hw_heap_roots& roots, const char* internal_prefix, const FindBlock& find_block,
                    Result* progress)
        : roots_(roots), internal_prefix_(internal_prefix), find_block_(find_block), progress_(progress) {}

    template <typename Visit>
    void each_tracked(Visit visit) {
        hw_heap_each_tracked(
            &roots_, [](void* context, const void* object) { (*static_cast<Visit*>(context))(as_address(object)); },
            &visit);
    }
    template <typename Visit>
    void each_root(Visit visit) {
        hw_heap_each_root(
            &roots_, internal_prefix_,
            [](void* context, hw_label_kind root_kind, const void* root_text, const void* object, hw_label_kind kind,
               const void* text) {
                (*static_cast<Visit*>(context))(label(root_kind, root_text), label(kind, text), as_address(object));
            },
            &visit);
    }
    template <typename Visit>
    void references(std::uintptr_t address, bool is_namespace, Visit visit) {
        note_progress(address);
        // What a word somewhere else leads to may be the buffer of this object by chance: the word is old.
        std::uint64_t bytes = 0;
        if (const std::uintptr_t buffer = hw_object_buffer(as_object(address), &bytes)) claimed_.add(buffer);
        hw_object_each_reference(
            as_object(address), is_namespace,
            [](void* context, const void* object, hw_label_kind kind, const void* text) {
                (*static_cast<Visit*>(context))(label(kind, text), as_address(object));
            },
            &visit);
    }
    template <typename Visit>
    void hidden(std::uintptr_t address, Visit visit) const {
        const void* const object = as_object(address);
        if (!hw_object_may_hide_references(object)) return;
        const std::uintptr_t* words = nullptr;
        const std::uint32_t count = hw_object_words(object, &words);
        for (std::uint32_t i = 0; i < count; ++i)
            if (!hw_object_is_weak_list(object, words + i)) visit(words[i]);
    }
    bool is_container(std::uintptr_t address) const { return hw_object_is_container(as_object(address)) != 0; }
    bool is_listed(std::uintptr_t address) const { return hw_object_is_tracked(as_object(address)) != 0; }
    bool is_immortal(std::uintptr_t address) const { return hw_object_is_immortal(as_object(address)) != 0; }
    std::int64_t references_to(std::uintptr_t address) const { return hw_object_references_to(as_object(address)); }
    const void* type_of(std::uintptr_t address) const { return hw_object_type(as_object(address)); }

    // Before measure(): a block that is an object belongs to no other.
    void know_objects(const ObjectSet& objects) { objects_ = &objects; }

    // The object's own block, and blocks whose addresses are in its words, or in those of these blocks: lists' items,
    // arrays' data, structs of C and C++. A block counts once: with the object that the traversal meets first.
    template <typename Visit>
    void measure(std::uintptr_t address, Visit visit) {
        const void* const object = as_object(address);
        const Block own = find_block_(hw_object_block(object));
        if (own.account != 0) {
            visit(own.account, own.bytes);
        } else if (is_immortal(address)) {
            return;  // static, mostly
        } else {
            visit(std::uint32_t{0}, hw_object_bytes(object));
        }
        if (const std::uintptr_t values = hw_object_values_block(object)) claim(values, 0, visit);
        std::uint64_t bytes = 0;
        const std::uintptr_t buffer = hw_object_buffer(object, &bytes);
        // References or data: nothing in it leads to more. That of a container was claimed by references().
        if (is_container(address)) {
            const Block block = find_block_(buffer);
            if (bytes != 0) visit(block.account, block.account != 0 ? block.bytes : bytes);
        } else if (!claim(buffer, 0, visit) && bytes != 0 && claimed_.add(buffer)) {
            visit(std::uint32_t{0}, bytes);
        }
        const std::uintptr_t* words = nullptr;
        const std::uint32_t count = hw_object_words(object, &words);
        claim_words(words, count, kDepth, visit);
    }

private:
    // A table of Arrow's keeps its data behind ten structs and vectors of C++. Larger blocks are data.
    static constexpr unsigned kDepth = 12;
    static constexpr std::uint64_t kLargestStruct = 4096;

    static std::uintptr_t as_address(const void* object) { return reinterpret_cast<std::uintptr_t>(object); }
    static const void* as_object(std::uintptr_t address) { return reinterpret_cast<const void*>(address); }
    static Label label(hw_label_kind kind, const void* text) { return {kind, text}; }

    template <typename Visit>
    void claim_words(const std::uintptr_t* words, std::size_t count, unsigned depth, Visit& visit) {
        for (std::size_t i = 0; i < count; ++i) claim(words[i], depth, visit);
    }
    // Whether a recorded block starts there.
    template <typename Visit>
    bool claim(std::uintptr_t start, unsigned depth, Visit& visit) {
        constexpr std::uintptr_t kLowest = 1 << 16, kHighest = std::uintptr_t{1} << kAddressBits;
        if (start % 8 != 0 || start < kLowest || start >= kHighest) return false;
        const Block block = find_block_(start);
        if (block.account == 0) return false;
        if (objects_->contains(start) || !claimed_.add(start)) return true;
        visit(block.account, block.bytes);
        if (depth != 0 && block.bytes <= kLargestStruct && start % sizeof(std::uintptr_t) == 0)
            claim_words(reinterpret_cast<const std::uintptr_t*>(start), block.bytes / sizeof(std::uintptr_t), depth - 1,
                        visit);
        return true;
    }

    void note_progress(std::uintptr_t address) {
        const void* const type = type_of(address);
        if (type == type_) return;
        type_ = type;
        const char* const name = hw_type_c_name(type);  // which type to name, should its function crash
        std::strncpy(progress_->type_name, name, sizeof progress_->type_name - 1);
    }

    const hw_heap_roots roots_;
    const char* const internal_prefix_;
    const FindBlock& find_block_;
    Result* const progress_;
    const void* type_ = nullptr;
    const ObjectSet* objects_ = nullptr;
    ObjectSet claimed_;
};

}  // namespace hiwater::holders
