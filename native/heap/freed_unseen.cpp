// The end of a recording: blocks that were freed unseen are not live.
#include <string>

#include "base/pages.h"
#include "heap/chunk_headers.h"
#include "session/recorder.h"

namespace hiwater {

namespace {

constexpr std::size_t kMostChecked = 100'000;
constexpr std::uint64_t kLarge = 1024;

std::string in_words(std::size_t blocks, std::uint64_t bytes) {
    return std::to_string(blocks) + (blocks == 1 ? " block" : " blocks") + ", " + std::to_string(bytes) +
           " bytes in total, freed by calls that were not recorded: they count as live during the recording, and not "
           "at its end";
}

}  // namespace

// Under the lock. Larger blocks first: no more than kMostChecked are checked.
void Recorder::forget_freed() {
    PageVector<chunk_headers::Block> blocks, small;
    const auto gather = [&](std::uintptr_t address, const Block& block) {
        PageVector<chunk_headers::Block>& list = block.bytes >= kLarge ? blocks : small;
        if (list.size() >= kMostChecked) return;
        if (accounts_.is_native(block.account)) list.push_back({address, block.bytes});
    };
    sampled() ? samples_.each(gather) : live_.each(gather);
    for (const chunk_headers::Block& block : small)
        if (blocks.size() < kMostChecked) blocks.push_back(block);
    chunk_headers::find_freed(blocks.data(), blocks.size());
    std::size_t freed = 0;
    std::uint64_t bytes = 0;
    for (const chunk_headers::Block& block : blocks) {
        if (!block.is_freed) continue;
        ++freed;
        bytes += block.bytes;
        if (sampled()) {
            const Block gone = samples_.remove(block.address);
            if (gone.account != 0) debit_sampled(gone);
        } else {
            remove_stale(block.address);
        }
    }
    if (freed != 0) append_fact("freed_unseen", in_words(freed, bytes));
}

}  // namespace hiwater
