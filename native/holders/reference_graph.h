// Which paths refer to which, and what each path alone holds.
//
// Path D dominates path P if every way from a root to an object of P goes through an object of D (T. Lengauer, R. E.
// Tarjan, "A fast algorithm for finding dominators in a flowgraph", 1979). All ways between objects are ways between
// their paths. So if D dominates P here, then without the objects of D nothing would hold those of P: the retained
// bytes of a path are a lower bound of what its objects retain together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "holders/paths.h"

namespace hiwater::holders {

class ReferenceGraph : Uncopied {
public:
    // `count` is how many references there are. Throws bad_alloc.
    struct Edge {
        std::uint32_t from, to;  // `to` 0: free
        std::uint64_t count;
        bool is_free() const noexcept { return to == 0; }
        std::uint64_t hash() const noexcept { return mix(std::uint64_t{from} << 32 | to); }
    };

    void add(std::uint32_t from, std::uint32_t to) {
        if (from == to) return;
        if (last_.from == from && last_.to == to) {
            ++last_.count;
            return;
        }
        flush();
        last_ = {from, to, 1};
    }

    // Fills `dominator` and `retained_bytes` of all paths, from their `bytes`. O(edges) for most graphs. Throws
    // bad_alloc.
    void dominate(Paths& paths) {
        collect();
        number_in_postorder(paths.size());
        find_dominators(paths);
        sum_up(paths);
    }

    // After dominate(): edges by the path that they lead to.
    template <typename Visit>  // visit(edge)
    void each_to(std::uint32_t path, Visit visit) const {
        for (std::uint32_t i = first_to_[path]; i < first_to_[path + 1]; ++i) visit(by_target_[i]);
    }

private:
    // Beyond that, a path that edges are missing of counts as held by a root: what its holders retain is then less than
    // it might be.
    static constexpr std::size_t kMostEdges = 2 << 20;
    static constexpr std::uint32_t kUnreached = 0;

    void flush() {
        if (last_.is_free()) return;
        const Edge edge = last_;
        last_ = {};
        const auto is_it = [edge](const Edge& other) { return other.from == edge.from && other.to == edge.to; };
        if (const Edge* known = edges_.find(edge.hash(), is_it)) {
            const_cast<Edge*>(known)->count += edge.count;
        } else if (edges_.size() < kMostEdges || edge.from == Paths::kTop) {
            edges_.put(edge, is_it);
        } else {
            add(Paths::kTop, edge.to);
            flush();
        }
    }

    // Edges by source and by target.
    void collect() {
        flush();
        edges_.each([&](const Edge& edge) { by_source_.push_back(edge), by_target_.push_back(edge); });
        std::sort(by_source_.begin(), by_source_.end(),
                  [](const Edge& a, const Edge& b) { return a.from != b.from ? a.from < b.from : a.to < b.to; });
        std::sort(by_target_.begin(), by_target_.end(),
                  [](const Edge& a, const Edge& b) { return a.to != b.to ? a.to < b.to : a.from < b.from; });
    }
    static void index(PageVector<std::uint32_t>& first, const PageVector<Edge>& edges, std::uint32_t Edge::* end,
                      std::size_t paths) {
        first.resize(paths + 1);
        for (const Edge& edge : edges) ++first[edge.*end + 1];
        for (std::size_t i = 0; i < paths; ++i) first[i + 1] += first[i];
    }

    void number_in_postorder(std::size_t paths) {
        index(first_from_, by_source_, &Edge::from, paths);
        index(first_to_, by_target_, &Edge::to, paths);
        order_.resize(paths);  // 1 + place in the postorder; kUnreached
        PageVector<std::uint32_t> stack, next;
        next.resize(paths);
        PageVector<std::uint8_t> seen;
        seen.resize(paths);
        stack.push_back(Paths::kTop);
        seen[Paths::kTop] = 1;
        while (stack.size() != 0) {
            const std::uint32_t at = stack[stack.size() - 1];
            if (next[at] < first_from_[at + 1] - first_from_[at]) {
                const std::uint32_t to = by_source_[first_from_[at] + next[at]++].to;
                if (seen[to] == 0) seen[to] = 1, stack.push_back(to);
            } else {
                stack.resize(stack.size() - 1);
                postorder_.push_back(at);
                order_[at] = static_cast<std::uint32_t>(postorder_.size());
            }
        }
    }

    // K. D. Cooper, T. J. Harvey, K. Kennedy, "A simple, fast dominance algorithm", 2001.
    void find_dominators(Paths& paths) {
        PageVector<std::uint32_t> known;  // whether the path has a dominator yet
        known.resize(paths.size());
        known[Paths::kTop] = 1;
        paths[Paths::kTop].dominator = Paths::kTop;
        for (bool is_changed = true; is_changed;) {
            is_changed = false;
            for (std::size_t i = postorder_.size() - 1; i-- > 0;) {  // without the top, which is last
                const std::uint32_t at = postorder_[i];
                bool is_first = true;
                std::uint32_t found = Paths::kTop;
                each_to(at, [&](const Edge& edge) {
                    if (known[edge.from] == 0) return;
                    found = is_first ? edge.from : common(paths, found, edge.from);
                    is_first = false;
                });
                if (known[at] != 0 && paths[at].dominator == found) continue;
                known[at] = 1;
                paths[at].dominator = found;
                is_changed = true;
            }
        }
    }
    std::uint32_t common(const Paths& paths, std::uint32_t a, std::uint32_t b) const {
        while (a != b) {
            while (order_[a] < order_[b]) a = paths[a].dominator;
            while (order_[b] < order_[a]) b = paths[b].dominator;
        }
        return a;
    }

    void sum_up(Paths& paths) {
        for (std::uint32_t path = 0; path < paths.size(); ++path) paths[path].retained_bytes = paths[path].bytes;
        // A path comes before its dominator in the postorder.
        for (const std::uint32_t path : postorder_)
            if (path != Paths::kTop) paths[paths[path].dominator].retained_bytes += paths[path].retained_bytes;
    }

    OpenTable<Edge> edges_;
    Edge last_{};
    PageVector<Edge> by_source_, by_target_;
    PageVector<std::uint32_t> first_from_, first_to_, order_, postorder_;
};

}  // namespace hiwater::holders
