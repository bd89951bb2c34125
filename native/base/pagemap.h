// Which pages of this process are in RAM, from /proc/self/pagemap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/own_file.h"
#include "base/uncopied.h"

namespace hiwater {

class Pagemap : Uncopied {
public:
    // The kernel's page of zeros, which stands for what was only ever read, is of the first kind alone.
    enum class Kind : std::uint8_t { mapped, memory, written };  // written: private pages, also of files
    struct Range {
        std::uintptr_t start, end;
    };
    struct Found {
        std::size_t ranges = 0;
        std::uintptr_t end = 0;  // up to there; `from` where nothing can be read
    };

    explicit Pagemap(bool may_scan = true) noexcept;
    bool works() const noexcept { return file_.descriptor() >= 0; }
    // Whether the kernel finds ranges itself (PAGEMAP_SCAN, Linux 6.7): a tenth of the time. Otherwise each page's
    // flags are read, which tell a small page of zeros from memory only where `mine_alone` says that no other process
    // has it, and show memory and written pages of files alike as neither.
    bool scans() const noexcept { return scans_; }
    // The ranges of such pages in [from, to), whole pages both, in order.
    Found find(Kind kind, std::uintptr_t from, std::uintptr_t to, Range* out, std::size_t most,
               bool mine_alone = false) const noexcept;

private:
    bool scan(Kind kind, std::uintptr_t from, std::uintptr_t to, Range* out, std::size_t most,
              Found* found) const noexcept;
    Found read(Kind kind, std::uintptr_t from, std::uintptr_t to, Range* out, std::size_t most,
               bool mine_alone) const noexcept;

    const OwnFile::Reading file_;
    bool scans_ = false;
};

}  // namespace hiwater
