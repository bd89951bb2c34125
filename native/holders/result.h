// What a traversal found, in memory that the process and its copy share: rows for the capture's tables.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/pages.h"

namespace hiwater::holders {

// What is kept in any case, as far as there is room.
struct Wanted {
    std::uintptr_t object = 0;   // 0: none
    const void* type = nullptr;  // null: none
};

struct Text {
    std::uint32_t offset, length;
};

struct PathRow {  // rows number their paths from 1; 0: none
    std::uint32_t parent, dominator, kind, is_shared;
    Text label, type;
    std::uint64_t objects, bytes, retained_bytes;
};
struct BlockRow {  // path 0: of no object
    std::uint32_t path, account;
    std::uint64_t blocks, bytes;
};
struct ReferenceRow {
    std::uint32_t from, to;
    std::uint64_t references;
};

template <typename Row, std::uint32_t kMost>
struct Rows {
    std::uint32_t size;
    Row row[kMost];
    // What matters most is appended first.
    bool append(const Row& added) noexcept {
        if (size == kMost) return false;
        row[size++] = added;
        return true;
    }
    const Row* begin() const noexcept { return row; }
    const Row* end() const noexcept { return row + size; }
};

struct Result {
    static constexpr std::uint32_t kMostPaths = 12'000;

    bool is_whole, has_no_memory;
    char type_name[120];  // of the object whose references are being read
    std::uint64_t objects, references, bytes, all_paths;
    std::uint32_t target;  // the path of the object that was asked for; 0: none was, or it was not found
    Rows<PathRow, kMostPaths> paths;
    Rows<BlockRow, 4 * kMostPaths> blocks;
    Rows<ReferenceRow, 2 * kMostPaths> references_between;
    std::uint32_t text_bytes;
    char text[1 << 21];
};

class SharedResult : Uncopied {
public:
    ~SharedResult() { unmap_pages(result_, sizeof(Result)); }
    Result* get() const noexcept { return result_; }  // null: there was no memory

private:
    Result* const result_ = static_cast<Result*>(map_shared_pages(sizeof(Result), Use::shared));
};

}  // namespace hiwater::holders
