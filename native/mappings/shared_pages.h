// Shared memory that this process made. Several mappings may show the same pages of an object. These pages count once,
// for the account of the mapping that came first, until the last of the mappings is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/pages.h"

namespace hiwater {

// How the kernel names an object: a file on a memory file system, or a System V segment.
struct SharedObject {
    static constexpr std::uint64_t kSystemV = ~0ULL;  // as `device`; `number` is then the segment's id
    std::uint64_t device = 0, number = 0;             // st_dev and st_ino; no object has zeros
    bool operator==(const SharedObject&) const = default;
    bool is_named() const noexcept { return device != 0 || number != 0; }
};

// A page of an object: the object's own number here in the upper half, the page's in the lower. 0: none.
using SharedPlace = std::uint64_t;
inline constexpr std::uint64_t kSharedPages = 1ULL << 32;  // of one object
constexpr SharedPlace shared_place(std::uint32_t object, std::uint64_t page) noexcept {
    return object * kSharedPages + page;
}

// The objects that this process was seen to make. Only the newest ones are kept, because the end of an object is not
// seen.
class MadeObjects {
public:
    static constexpr std::size_t kMost = 16 * 1024;

    // The number of an object, or 0.
    std::uint32_t find(const SharedObject& object) const noexcept {
        for (std::size_t i = made_.size(); i-- > 0;)
            if (made_[i].object == object) return made_[i].number;
        return 0;
    }
    // The number of an object that is made now, or was. Throws bad_alloc.
    std::uint32_t add(const SharedObject& object) {
        if (const std::uint32_t known = find(object); known != 0) return known;
        const Made made{object, add_unnamed()};
        if (made_.size() < kMost) {
            made_.push_back(made);
        } else {
            made_[oldest_++ % kMost] = made;
        }
        return made.number;
    }
    // The number of a new object that has no name, so that nobody maps it again.
    std::uint32_t add_unnamed() noexcept { return ++last_; }
    void reset() noexcept {
        made_.reset();
        oldest_ = 0;
        last_ = 0;
    }

private:
    struct Made {
        SharedObject object;
        std::uint32_t number = 0;
    };
    PageVector<Made> made_;
    std::size_t oldest_ = 0;
    std::uint32_t last_ = 0;
};

class SharedPages {
    struct Run {
        SharedPlace end = 0;
        std::uint32_t account = 0;
        std::uint32_t mappings = 0;
        bool is_cut_off = false;  // the run before this one was once one with it
    };
    using Tree = PieceMap<SharedPlace, Run>;

public:
    // One more mapping shows [start, end). Calls change(account, pages, runs) with what the account gains. Throws
    // bad_alloc.
    template <typename Change>
    void map(SharedPlace start, SharedPlace end, std::uint32_t account, Change change) {
        cut(start, change);
        cut(end, change);
        for (auto it = tree_.lower_bound(start); start < end; ++it) {
            const SharedPlace next = it == tree_.end() || it->first > end ? end : it->first;
            if (next > start) {
                tree_.emplace_hint(it, start, Run{next, account, 1, false});
                change(account, static_cast<std::int64_t>(next - start), 1);
                start = next;
                if (start == end) break;
            }
            ++it->second.mappings;
            start = it->second.end;
        }
    }

    // One mapping of [start, end) less. Calls change(account, pages, runs) with what the accounts lose: numbers below
    // zero. Throws bad_alloc.
    template <typename Change>
    void unmap(SharedPlace start, SharedPlace end, Change change) {
        cut(start, change);
        cut(end, change);
        auto it = tree_.lower_bound(start);
        while (it != tree_.end() && it->first < end) {
            Run& run = it->second;
            if (--run.mappings == 0) {
                change(run.account, -static_cast<std::int64_t>(run.end - it->first), -1);
                it = tree_.erase(it);
            } else {
                it = std::next(join(it, change));
            }
        }
        if (it != tree_.end()) join(it, change);
    }

    template <typename Visit>
    void each(Visit visit) const {
        for (const auto& [start, run] : tree_) visit(start, run.end, run.account);
    }

    void reset() noexcept {
        tree_.clear();
        pool_.reset();
    }

private:
    template <typename Change>
    void cut(SharedPlace at, Change change) {
        auto it = tree_.lower_bound(at);
        if (it == tree_.begin() || std::prev(it)->second.end <= at) return;
        Run& run = std::prev(it)->second;
        tree_.emplace_hint(it, at, Run{run.end, run.account, run.mappings, true});
        run.end = at;
        change(run.account, std::int64_t{0}, 1);
    }
    // Joins two runs that every mapping shows alike. Returns the run that is left.
    template <typename Change>
    Tree::iterator join(Tree::iterator it, Change change) {
        if (!it->second.is_cut_off || it == tree_.begin()) return it;
        const auto before = std::prev(it);
        const Run run = it->second;
        if (before->second.end != it->first || before->second.account != run.account ||
            before->second.mappings != run.mappings)
            return it;
        before->second.end = run.end;
        tree_.erase(it);
        change(run.account, std::int64_t{0}, -1);
        return before;
    }

    PiecePool pool_;
    Tree tree_{&pool_};
};

}  // namespace hiwater
