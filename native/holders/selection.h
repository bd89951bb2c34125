// The part of a traversal that is kept: the paths that retain most, and those that lead to them.
#pragma once

#include <string.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "heap/live_table.h"
#include "holders/python_heap.h"
#include "holders/result.h"
#include "holders/traversal.h"
#include "stacks/frames.h"

namespace hiwater::holders {

template <typename Heap>
class Selection : Uncopied {
public:
    Selection(const Traversal<Heap>& traversal, Result* out)
        : traversal_(traversal), paths_(traversal.paths()), out_(*out) {}

    // `each_block(visit)` calls visit(block) for every recorded block. Throws bad_alloc.
    template <typename EachBlock>
    void write(const Wanted& wanted, const EachBlock& each_block) {
        row_of_.resize(paths_.size());
        const std::uint32_t target = wanted.object == 0 ? 0 : traversal_.path_of(wanted.object);
        if (target != 0) keep(target, Result::kMostPaths);
        keep_largest(wanted.type);
        std::uint32_t rows = 0;
        for (std::uint32_t path = 1; path < paths_.size(); ++path)  // a path is younger than its parent
            if (row_of_[path] != 0) row_of_[path] = ++rows;
        for (std::uint32_t path = 1; path < paths_.size(); ++path)
            if (row_of_[path] != 0) write_path(path);
        out_.target = row_of_[target];
        write_unheld(each_block);
        write_blocks();
        for (std::uint32_t path = 1; path < paths_.size(); ++path)
            if (row_of_[path] != 0) write_references_to(path);
        out_.objects = traversal_.objects();
        out_.references = traversal_.references();
        out_.bytes = paths_[Paths::kTop].retained_bytes;
        out_.all_paths = paths_.size() - 1;
    }

private:
    static constexpr std::uint32_t kMostReferences = 4;  // that are kept of those to one path
    static constexpr std::uint32_t kMostUnheld = 2000;   // accounts

    // With what leads to it, where there is room for both.
    bool keep(std::uint32_t path, std::uint32_t most) {
        std::uint32_t more = 0;
        for (std::uint32_t at = path; at != Paths::kTop && row_of_[at] == 0; at = paths_[at].parent) ++more;
        if (kept_ + more > most) return false;
        kept_ += more;
        for (std::uint32_t at = path; at != Paths::kTop && row_of_[at] == 0; at = paths_[at].parent) row_of_[at] = 1;
        return true;
    }
    // A part of the room is for all paths alike. Then come objects of other types than the language's own: a program
    // has few of them, and is asked for them. Most small paths are functions and texts of modules.
    void keep_largest(const void* type) {
        PageVector<std::uint32_t> order;
        for (std::uint32_t path = 1; path < paths_.size(); ++path) order.push_back(path);
        std::sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
            return paths_[a].retained_bytes != paths_[b].retained_bytes
                       ? paths_[a].retained_bytes > paths_[b].retained_bytes
                       : a < b;
        });
        const auto keep_those = [&](std::uint32_t most, const auto& is_meant) {
            for (const std::uint32_t path : order)
                if (is_meant(paths_[path].type) && !keep(path, most)) return;
        };
        const auto is_any = [](const void*) { return true; };
        if (type != nullptr) keep_those(Result::kMostPaths, [type](const void* other) { return other == type; });
        keep_those(Result::kMostPaths / 3, is_any);
        keep_those(Result::kMostPaths,
                   [](const void* other) { return other != nullptr && !hw_type_is_builtin(other); });
        keep_those(Result::kMostPaths, is_any);
    }

    void write_path(std::uint32_t path) {
        const Path& p = paths_[path];
        out_.paths.append({row_of_[p.parent], row_of_[p.dominator], static_cast<std::uint32_t>(p.kind),
                           p.is_shared ? 1U : 0U, text(label_naming(p.kind), p.text), text(Naming::type, p.type),
                           p.objects, p.bytes, p.retained_bytes});
    }
    // What is recorded and belongs to no object that was found, by account.
    template <typename EachBlock>
    void write_unheld(const EachBlock& each_block) {
        PageVector<BlockRow> unheld;  // by account
        each_block([&](const Block& block) {
            if (block.account >= unheld.size()) unheld.resize(block.account + 1);
            ++unheld[block.account].blocks;
            unheld[block.account].bytes += block.bytes;
        });
        traversal_.each_holding([&](const Holding& part) {
            if (part.account == 0 || part.account >= unheld.size()) return;
            BlockRow& row = unheld[part.account];
            row.blocks -= std::min(row.blocks, part.blocks);
            row.bytes -= std::min(row.bytes, part.bytes);
        });
        for (std::uint32_t account = 0; account < unheld.size(); ++account) unheld[account].account = account;
        std::sort(unheld.begin(), unheld.end(), [](const BlockRow& a, const BlockRow& b) {
            return a.bytes != b.bytes ? a.bytes > b.bytes : a.account < b.account;
        });
        for (const BlockRow& row : unheld) {
            if (row.bytes == 0 || out_.blocks.size == kMostUnheld) return;
            out_.blocks.append(row);
        }
    }
    void write_blocks() {
        PageVector<Holding> kept;
        traversal_.each_holding([&](const Holding& part) {
            if (row_of_[part.path] != 0) kept.push_back(part);
        });
        std::sort(kept.begin(), kept.end(), [](const Holding& a, const Holding& b) {
            if (a.bytes != b.bytes) return a.bytes > b.bytes;
            return a.path != b.path ? a.path < b.path : a.account < b.account;
        });
        for (const Holding& part : kept)
            if (!out_.blocks.append({row_of_[part.path], part.account, part.blocks, part.bytes})) return;
    }
    void write_references_to(std::uint32_t path) {
        ReferenceRow most[kMostReferences] = {};
        traversal_.graph().each_to(path, [&](const ReferenceGraph::Edge& edge) {
            if (row_of_[edge.from] == 0) return;
            ReferenceRow next{row_of_[edge.from], row_of_[path], edge.count};
            for (ReferenceRow& known : most)
                if (next.references > known.references) std::swap(next, known);
        });
        for (const ReferenceRow& row : most)
            if (row.from != 0) out_.references_between.append(row);
    }

    enum class Naming : std::uint8_t { none, str, code, c_string, type };
    static Naming label_naming(hw_label_kind kind) {
        switch (kind) {
            case HW_MODULE:
            case HW_VARIABLE:
            case HW_LOCAL:
                return Naming::str;
            case HW_FRAME:
                return Naming::code;
            case HW_MEMBER:
                return Naming::c_string;
            default:
                return Naming::none;
        }
    }
    struct Named {
        const void* what;
        Text text;
        bool is_free() const noexcept { return what == nullptr; }
        std::uint64_t hash() const noexcept { return mix(reinterpret_cast<std::uintptr_t>(what)); }
    };
    // Where there is no room left, names are empty.
    Text text(Naming naming, const void* what) {
        constexpr std::uint32_t kLongest = 400;
        if (naming == Naming::none || what == nullptr) return {};
        const auto is_it = [what](const Named& other) { return other.what == what; };
        Named named{what, {out_.text_bytes, 0}};
        if (const Named* known = names_.find(named.hash(), is_it)) return known->text;
        if (sizeof out_.text - out_.text_bytes < kLongest) return {};
        named.text.length = spell(naming, what, out_.text + out_.text_bytes, kLongest);
        out_.text_bytes += named.text.length;
        names_.put(named, is_it);
        return named.text;
    }
    static std::uint32_t spell(Naming naming, const void* what, char* buffer, std::uint32_t size) {
        if (naming == Naming::type) return hw_type_name(what, buffer, size);
        if (naming == Naming::code) return hw_code_name(what, buffer, size);
        if (naming == Naming::str) return hw_str_utf8(what, buffer, size);
        const auto length = static_cast<std::uint32_t>(::strnlen(static_cast<const char*>(what), size));
        ::memcpy(buffer, what, length);
        return length;
    }

    const Traversal<Heap>& traversal_;
    const Paths& paths_;
    Result& out_;
    PageVector<std::uint32_t> row_of_;  // by path: its row, 0 where it is not kept
    std::uint32_t kept_ = 0;
    OpenTable<Named> names_;
};

}  // namespace hiwater::holders
