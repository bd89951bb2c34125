#include "residency/page_heads.h"

#include <sys/uio.h>

#include <algorithm>
#include <utility>

#include "base/pages.h"

#include "base/raw_calls.h"

namespace hiwater::residency {

bool PageHeads::works() noexcept {
    char from = 1, to = 0;
    return platform::copy_own(&to, &from, 1);
}

const unsigned char* PageHeads::at(std::uintptr_t page, std::uintptr_t end) noexcept {
    for (; next_ < count_ && addresses_[next_] < page; ++next_) most_ = 0;
    if (next_ >= count_ || addresses_[next_] != page) read_from(page, end);
    return next_ < count_ ? heads_[next_++] : nullptr;
}

// One call for all, up to the first that is gone. Only pages in RAM are among them: reading must not bring in others.
// At the distance of the last two, and twice as many as before where those before were all asked for.
void PageHeads::read_from(std::uintptr_t page, std::uintptr_t end) noexcept {
    const std::uintptr_t distance = count_ != 0 && page == addresses_[count_ - 1] + kPage ? kPage : kPoolBytes;
    if (std::exchange(distance_, distance) != distance) most_ = 0;
    most_ = std::clamp<std::size_t>(2 * most_, 1, kBatch);
    iovec there[kBatch];
    std::size_t wanted = 0;
    do {
        addresses_[wanted] = page;
        there[wanted] = {reinterpret_cast<void*>(page), kHeadBytes};
        ++wanted;
        if (page % distance != 0) break;
        page = pages_.next_present(page + distance, end);
    } while (wanted < most_ && page < end && page % distance == 0);
    const ssize_t n = raw::read_own(heads_, wanted * kHeadBytes, there, wanted);
    count_ = n < 0 ? 0 : static_cast<std::size_t>(n) / kHeadBytes;
    next_ = 0;
}

}  // namespace hiwater::residency
