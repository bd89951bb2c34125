#include "holders/search.h"

#include <signal.h>
#include <string.h>

#include <exception>
#include <string_view>

#include "base/own_ranges.h"
#include "holders/interpreter_heap.h"
#include "holders/selection.h"
#include "holders/traversal.h"
#include "session/recorder.h"

namespace hiwater {

namespace holders {

namespace {

// In the copy of the process.
template <typename FindBlock, typename EachBlock>
void traverse(const hw_heap_roots& roots, const char* internal_prefix, const FindBlock& find_block,
              const EachBlock& each_block, const Wanted& wanted, Result* result) {
    try {
        InterpreterHeap heap(roots, internal_prefix, find_block, result);
        Traversal traversal(heap);
        traversal.run();
        Selection(traversal, result).write(wanted, each_block);
        result->is_whole = true;
    } catch (const std::exception&) {
        result->has_no_memory = true;
    }
}

}  // namespace

void Search::wait(std::uint64_t most_ns) noexcept {
    copy_.wait(most_ns);
    duration_ns_ = process::monotonic_ns() - began_ns_;
}

bool Search::has_ended(std::uint64_t most_ns) noexcept {
    duration_ns_ = process::monotonic_ns() - began_ns_;
    return copy_.has_ended(most_ns);
}

std::string Search::failure() const {
    const Result& found = result();
    if (found.is_whole) return "";
    const std::string type(found.type_name, ::strnlen(found.type_name, sizeof found.type_name));
    if (found.has_no_memory) return "there was not enough memory for it";
    if (copy_.end() == ProcessCopy::End::timed_out)
        return "it took longer than " + std::to_string(duration_ns_ / 1'000'000'000) +
               " s; the last objects it read are of type " + type;
    const std::string signal = " (signal " + std::to_string(copy_.signal()) + ")";
    if (type.empty() || copy_.signal() == SIGKILL) return "its process was ended" + signal;
    return "it crashed while it read an object of type " + type + signal;
}

}  // namespace holders

int Recorder::begin_search(holders::Search& search) noexcept {
    int error = ENOENT;
    if_recorded([&] {
        if (holder_searches_.size() >= capture::kMostHolderSearches) {
            error = ENOSPC;
            return;
        }
        const bool is_sampled = sampled();
        const auto find_block = [this, is_sampled](std::uintptr_t address) noexcept {
            if (!is_sampled) return live_.find_block(LiveTable::key_of(address));
            return samples_.may_hold(address) ? samples_.find_block(address) : Block{};
        };
        const auto each_block = [this, is_sampled](auto visit) {
            if (!is_sampled) live_.each([&](std::uintptr_t, const Block& block) { visit(block); });
        };
        live_.kept_at_fork([&] {
            error =
                search.start([&](const hw_heap_roots& roots, const holders::Wanted& wanted, holders::Result* result) {
                    holders::traverse(roots, codes_.internal_prefix(), find_block, each_block, wanted, result);
                });
        });
        // Another process that asked for it learns that it has begun.
        if (error == 0) file_.header().search_error = EINPROGRESS;
    });
    return error;
}

int Recorder::end_search(const holders::Search& search, std::string_view name, std::uint32_t request) noexcept {
    int error = ENOENT;
    if_recorded([&] {
        error = ENOSPC;
        const holders::Result& found = search.result();
        const auto text = [&](holders::Text at) {
            return at.length == 0 ? 0 : tree_.string(std::string_view(found.text + at.offset, at.length));
        };
        const auto first = [](const auto& table) { return static_cast<std::uint32_t>(table.size()); };
        capture::HolderSearchRecord record{};
        record.at_ns = search.began_ns() > started_ns_ ? search.began_ns() - started_ns_ : 0;
        record.objects = found.objects;
        record.references = found.references;
        record.bytes = found.bytes;
        record.all_paths = found.all_paths;
        record.pause_ns = search.pause_ns();
        record.duration_ns = search.duration_ns();
        record.first_path = first(holder_paths_);
        record.paths = found.paths.size;
        record.first_block = first(holder_blocks_);
        record.blocks = found.blocks.size;
        record.first_reference = first(holder_references_);
        record.references_between = found.references_between.size;
        record.target = found.target;
        record.name = tree_.string(name);
        record.request = request;
        const std::string failure = search.failure();
        if (!failure.empty()) record.failure = tree_.string(failure);
        for (const holders::PathRow& row : found.paths)
            holder_paths_.append({row.parent, row.dominator, row.kind, row.is_shared, text(row.label), text(row.type),
                                  row.objects, row.bytes, row.retained_bytes});
        for (const holders::BlockRow& row : found.blocks)
            holder_blocks_.append({row.path, row.account, row.blocks, row.bytes});
        for (const holders::ReferenceRow& row : found.references_between)
            holder_references_.append({row.from, row.to, row.references});
        holder_searches_.append(record);
        error = 0;
    });
    return error;
}

void Recorder::answer_search(std::uint32_t request, int error) noexcept {
    capture::Header& header = file_.header();
    header.search_error = error;
    __atomic_store_n(&header.search_answer, request, __ATOMIC_RELEASE);
}

}  // namespace hiwater
