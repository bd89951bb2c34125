#include "session/top_line.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory_resource>
#include <tuple>
#include <vector>

#include "session/last_words.h"
#include "session/recorder.h"
#include "stacks/waits.h"

namespace hiwater {

namespace {

constexpr std::int64_t kLeadsAbove = 4;            // LEADS_ABOVE of analysis/user_lines.py
constexpr std::int64_t kWorthLeading = 1 << 20;    // WORTH_LEADING of the same
constexpr std::uint64_t kSettledNs = 100'000'000;  // SETTLED_NS of capture/untouched.py

// Pages of our own: the words of a program that has no memory left are found with these, and the program's heap stays
// as it is.
class Pages final : public std::pmr::memory_resource {
    void* do_allocate(std::size_t bytes, std::size_t) override {
        void* const at = map_pages(round_up(bytes, kPage), Use::tables);
        if (at == nullptr) throw std::bad_alloc();
        return at;
    }
    void do_deallocate(void* at, std::size_t bytes, std::size_t) override { unmap_pages(at, round_up(bytes, kPage)); }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

TopLine owned(const TopLineView& view) {
    return {view.is_known, view.group,           std::string(view.file), std::string(view.function), view.line,
            view.bytes,    view.untouched_bytes, view.imports_bytes,     view.all_untouched_bytes,   view.other_bytes};
}

}  // namespace

std::string_view function_around(std::string_view name) noexcept {
    for (;;) {
        std::string_view rest = name;
        for (const std::string_view kind : {"<listcomp>", "<dictcomp>", "<setcomp>"})
            if (rest.ends_with(kind)) rest.remove_suffix(kind.size());
        if (rest.size() == name.size()) return name;
        if (rest.ends_with("<locals>.")) rest.remove_suffix(9);
        if (rest.empty()) return "<module>";
        if (!rest.ends_with('.')) return name;
        rest.remove_suffix(1);
        name = rest;
    }
}

// Groups by lines what the accounts hold at the peak, or what they hold now of the process's own memory. Used once,
// under the lock.
class LineRanking {
public:
    enum class At : std::uint8_t { peak, now };
    using LargeBlocks = capture::FileTable<capture::LargeBlockRecord>;
    LineRanking(const capture::CaptureFile& file, const CallTree& tree, const Accounts& accounts,
                const LargeBlocks& large, At at, std::uint64_t now_ns)
        : pieces_(file), tree_(tree), accounts_(accounts), large_(large), at_(at), now_ns_(now_ns) {}

    TopLineView top() {
        read_untouched();
        add_accounts();
        return headline();
    }

    // Comes first. False where somebody else wrote to the capture.
    bool place_nodes() {
        places_.assign(tree_.node_count(), {});
        for (std::uint32_t id = 1; id < places_.size(); ++id) {
            pieces_.next();
            const capture::NodeRecord& node = tree_.node(id);
            if (node.code >= tree_.code_count() || node.parent >= id) return false;
            Place place = places_[node.parent];
            const capture::CodeRecord& code = tree_.code_record(node.code);
            const auto owner = static_cast<capture::Owner>(code.owner);
            const bool is_joint = is(code, capture::CodeKind::native_stack);
            if (is_joint && node.line >= id) return false;
            // What imports is shown, and not the import system's own frames.
            const bool is_passed_over =
                is(code, capture::CodeKind::label) ||
                (owner == capture::Owner::imports && is(code_of(node.parent), capture::CodeKind::python));
            if (!place.has_owner && !is_passed_over) place.shown = is_joint ? node.line : id;
            if (owner == capture::Owner::own || (owner == capture::Owner::run && !place.has_own)) {
                place = {id, true, owner == capture::Owner::own, false};
            } else if (owner == capture::Owner::imports) {
                place.below_import = true;
            }
            places_[id] = place;
        }
        return true;
    }

    // The node whose line stands for a call path.
    std::uint32_t shown_node(std::uint32_t node) const { return node < places_.size() ? places_[node].shown : 0; }

private:
    static constexpr std::size_t kGroups = 4, kLine = static_cast<std::size_t>(LineGroup::line),
                                 kImports = static_cast<std::size_t>(LineGroup::imports),
                                 kOther = static_cast<std::size_t>(LineGroup::other);
    struct Row {
        std::int64_t bytes = 0, untouched = 0;
    };
    // Group, and what equal lines have in common: file and line; the code object for what is on no line.
    using Key = std::tuple<LineGroup, std::uint32_t, std::uint32_t, std::uint32_t>;
    using Entry = std::pair<const Key, Row>;
    // The large blocks of a node in the snapshots in which most of them was touched, from the first of these to the
    // last.
    struct Seen {
        std::int64_t touched, requested;
        std::uint64_t first_ns, last_ns;
    };
    struct Place {
        std::uint32_t shown = 0;    // the innermost node of the user's own code at or above; else the innermost one
                                    // that is no label and not the import system's
        bool has_owner = false;     // it is of the user's own code
        bool has_own = false;       // that is more than the package that is run
        bool below_import = false;  // the import system is below it
    };

    const capture::CodeRecord& code_of(std::uint32_t node) const { return tree_.code_record(tree_.node(node).code); }
    static bool is(const capture::CodeRecord& code, capture::CodeKind kind) {
        return static_cast<capture::CodeKind>(code.kind) == kind;
    }

    // As `never_touched` in capture/untouched.py, which says why.
    void read_untouched() {
        std::pmr::map<std::pair<std::uint32_t, std::uint64_t>, std::pair<std::int64_t, std::int64_t>> sums(
            &memory_);  // (node, time): bytes, touched
        for (std::uint64_t row = 0; row < large_.size(); ++row) {
            const capture::LargeBlockRecord& block = large_[row];
            auto& [bytes, touched] = sums[{block.node, block.at_ns}];
            bytes += static_cast<std::int64_t>(block.bytes);
            touched += static_cast<std::int64_t>(block.touched_bytes);
        }
        std::pmr::map<std::uint32_t, Seen> most(&memory_);  // by node
        for (const auto& [at, sum] : sums) {
            const auto [node, at_ns] = at;
            const auto [requested, touched] = sum;
            const auto [known, is_new] = most.try_emplace(node, Seen{touched, requested, at_ns, at_ns});
            Seen& seen = known->second;
            if (std::pair(touched, requested) > std::pair(seen.touched, seen.requested))
                seen = {touched, requested, at_ns, at_ns};
            if (std::pair(touched, requested) == std::pair(seen.touched, seen.requested)) seen.last_ns = at_ns;
        }
        const std::uint64_t last_ns = large_.size() == 0 ? 0 : large_[large_.size() - 1].at_ns;
        const bool is_of_the_end =
            at_ == At::peak || now_ns_ - last_ns >= kSettledNs;  // it ends, and has taken its last snapshot
        most.erase(0);                                           // allocated by no recorded call path
        for (const auto& [node, seen] : most)
            if (seen.last_ns - seen.first_ns >= kSettledNs || (is_of_the_end && seen.last_ns == last_ns))
                untouched_[node] = seen.requested - seen.touched;
    }

    void add_accounts() {
        for (std::uint32_t id = 1; id < accounts_.size(); ++id) {
            pieces_.next();
            const capture::AccountRecord& account = accounts_.record(id);
            const bool is_device = static_cast<capture::Kind>(account.kind) == capture::Kind::device;
            const std::int64_t bytes = at_ == At::peak ? accounts_.at_peak(id).bytes
                                       : is_device     ? 0
                                                       : account.live_bytes;
            if (bytes <= 0 || !Accounts::counted(account.kind) || account.node >= places_.size()) continue;
            std::int64_t untouched = 0;
            const auto left = untouched_.find(account.node);
            if (left != untouched_.end() && !is_device) {
                untouched = std::max<std::int64_t>(0, std::min(left->second, bytes));
                left->second -= untouched;
            }
            const capture::NodeRecord& node = tree_.node(shown_node(account.node));
            const Key key = key_of(places_[account.node], node);
            Row& row = rows_[key];
            row.bytes += bytes - untouched;
            bytes_of_code_[{key, node.code}] += bytes - untouched;
            if (untouched != 0) add_untouched(account.node, key, node.code, untouched);
        }
    }

    // What a library mapped and nobody touched is on a row of the library's: the line did not choose its size.
    void add_untouched(std::uint32_t node, const Key& key, std::uint32_t code, std::int64_t bytes) {
        const std::uint32_t own = tree_.node(node).code;
        const bool is_librarys =
            is(code_of(node), capture::CodeKind::label) && tree_.text_of(code_of(node).file).starts_with(kMappedBy);
        const Key place = is_librarys ? Key{LineGroup::other, 0, 0, own} : key;
        rows_[place].untouched += bytes;
        bytes_of_code_[{place, is_librarys ? own : code}] += 0;
    }

    Key key_of(const Place& place, const capture::NodeRecord& node) const {
        const LineGroup group = place.below_import ? LineGroup::imports
                                : place.has_owner  ? LineGroup::line
                                                   : LineGroup::other;
        if (node.line == 0) return {group, 0, 0, node.code};
        return {group, tree_.code_record(node.code).file, node.line, 0};
    }

    // As `Ranking.headline` of analysis/user_lines.py, which says why.
    TopLineView headline() const {
        std::array<std::int64_t, kGroups> sums{};
        std::array<const Entry*, kGroups> first{};
        const Entry* unused = nullptr;
        std::int64_t all_untouched = 0;
        for (const Entry& entry : rows_) {
            const auto group = static_cast<std::size_t>(std::get<0>(entry.first));
            const Row& row = entry.second;
            sums[group] += row.bytes;
            all_untouched += row.untouched;
            if (first[group] == nullptr || comes_before(entry, *first[group])) first[group] = &entry;
            if (group != kLine) continue;
            const bool is_more = unused == nullptr || row.untouched > unused->second.untouched;
            if (is_more || (row.untouched == unused->second.untouched && comes_before(entry, *unused))) unused = &entry;
        }
        const std::int64_t least = kLeadsAbove * sums[kLine];
        std::size_t leads = first[kLine] != nullptr ? kLine : first[kImports] != nullptr ? kImports : kOther;
        if (sums[kImports] > std::max(sums[kOther], least)) leads = kImports;
        if (sums[kOther] > std::max(sums[kImports], least) && sums[kOther] >= kWorthLeading) leads = kOther;
        const Entry* chosen = first[leads];
        const std::int64_t touched =
            leads == kLine ? kLeadsAbove * (sums[kLine] + sums[kImports] + sums[kOther]) : sums[leads];
        if (unused != nullptr && unused->second.untouched > touched) chosen = unused;
        if (chosen == nullptr) return {};
        TopLineView top = described(*chosen);
        top.imports_bytes = sums[kImports];
        top.other_bytes = first[kLine] == nullptr ? 0 : sums[kOther];
        top.all_untouched_bytes = all_untouched;
        return top;
    }

    bool comes_before(const Entry& one, const Entry& other) const {
        const auto order = [this](const Entry& entry) {
            const auto& [group, file, line, code] = entry.first;
            return std::tuple(-entry.second.bytes, -entry.second.untouched, tree_.text_of(file), line);
        };
        return order(one) < order(other);
    }

    TopLineView described(const Entry& entry) const {
        const Row& row = entry.second;
        const auto most = std::max_element(
            bytes_of_code_.lower_bound({entry.first, 0}), bytes_of_code_.upper_bound({entry.first, ~std::uint32_t{0}}),
            [](const auto& one, const auto& other) { return one.second < other.second; });
        const capture::CodeRecord& code = tree_.code_record(most->first.second);
        TopLineView top;
        top.is_known = true;
        const bool is_waited = is(code, capture::CodeKind::wait) && std::get<0>(entry.first) == LineGroup::line;
        top.group = is_waited ? LineGroup::waited : std::get<0>(entry.first);
        top.file = tree_.text_of(code.file);
        top.function = function_around(tree_.text_of(code.function));
        if (top.group == LineGroup::waited)
            top.function.remove_prefix(std::min(top.function.size(), kWaitedFor.size()));
        if (top.file.starts_with(kMappedBy)) {
            top.function = top.file.substr(kMappedBy.size());
            top.file = {};
        }
        top.line = std::get<2>(entry.first);
        top.bytes = row.bytes;
        top.untouched_bytes = row.untouched;
        return top;
    }

    capture::InPieces pieces_;
    const CallTree& tree_;
    const Accounts& accounts_;
    const LargeBlocks& large_;
    const At at_;
    const std::uint64_t now_ns_;
    Pages pages_;
    std::pmr::monotonic_buffer_resource memory_{16 * kPage, &pages_};
    // Through an allocator: in braces a pointer would be an element of a vector.
    const std::pmr::polymorphic_allocator<> in_memory_{&memory_};
    std::pmr::vector<Place> places_{in_memory_};                        // by node
    std::pmr::map<std::uint32_t, std::int64_t> untouched_{in_memory_};  // by node
    std::pmr::map<Key, Row> rows_{in_memory_};
    std::pmr::map<std::pair<Key, std::uint32_t>, std::int64_t> bytes_of_code_{in_memory_};
};

// Under the lock, with the capture open.
void Recorder::name_lines(Summary& summary) {
    LineRanking ranking(file_, tree_, accounts_, large_blocks_, LineRanking::At::peak, now_ns());
    if (!ranking.place_nodes()) return;
    summary.top = owned(ranking.top());
    Refusal& refused = summary.refused;
    refused.count = refusals_;
    for (std::uint64_t row = markers_.size(); refusals_ != 0 && row-- != 0;) {
        const capture::MarkerRecord& marker = markers_[row];
        if (static_cast<capture::MarkerKind>(marker.kind) != capture::MarkerKind::out_of_memory) continue;
        refused.bytes = marker.value;
        const capture::NodeRecord& node = tree_.node(ranking.shown_node(marker.node));
        const capture::CodeRecord& code = tree_.code_record(node.code);
        refused.file = tree_.text_of(code.file);
        refused.function = function_around(tree_.text_of(code.function));
        refused.line = node.line;
        return;
    }
}

// Under the lock.
void Recorder::compose_last_words(LastWords::Text* out) {
    LineRanking ranking(file_, tree_, accounts_, large_blocks_, LineRanking::At::now, now_ns());
    const bool is_sound = ranking.place_nodes();
    last_words_.compose(limits_.nearest(), is_sound ? ranking.top() : TopLineView(), file_.header().resident_last_bytes,
                        path_, out);
}

}  // namespace hiwater
