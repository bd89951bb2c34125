// The capture as the recorder holds it: a mapped file that grows by segments, cut into extents that are handed to tables.
// Space is allocated on the disk before it is mapped, so that no store can meet a hole in a full file system (SIGBUS).
// Where the file system cannot do that, the capture is kept in memory and copied to its path from time to time and at the end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "../base/pages.h"
#include "format.h"

namespace hiwater::capture {

class CaptureFile {
public:
    CaptureFile() = default;
    CaptureFile(const CaptureFile&) = delete;
    CaptureFile& operator=(const CaptureFile&) = delete;
    ~CaptureFile() { abandon(); }

    // Makes the file with a header and an empty directory. Returns 0 or an errno value; on error no file of ours is left.
    int create(const char* path) noexcept;
    // Whether the file system at the path can hold no mapped file: write_back() then puts copies there, each whole or not at all.
    bool is_kept_in_memory() const { return in_memory_ && part_path_.size() != 0; }
    // Returns 0 or an errno value; does nothing for a capture that is its file. The caller keeps everybody else out.
    int write_back() noexcept;
    // The same in memory that nobody else sees: for counting without a capture.
    int create_in_memory() noexcept;
    bool is_open() const { return header_ != nullptr; }
    Header& header() const { return *header_; }

    // A fresh extent for a table's next chunk. Throws NoRoom when the disk or the format has no more.
    std::byte* add_extent(Table table, std::uint32_t chunk);
    // Puts pages where records will be written soon. Nothing may have been written from `at` on.
    void put_pages(const void* at, std::size_t bytes) const noexcept;

    // Cuts the file to what is used and lets go of it; `state` is the last thing stored. Returns what write_back() did.
    int finish(State state) noexcept;
    // Lets go of a capture that never began, and takes its file away.
    void discard() noexcept;
    // Lets go without a word: for the child of a fork, whose parent goes on writing.
    void abandon() noexcept;
    // Copies the used part to another file; the caller keeps everybody else out. Returns 0 or an errno value.
    int copy_to(const char* path) const noexcept;

    std::uint64_t mapped_bytes() const noexcept;
    std::uint64_t resident_bytes() const noexcept;

private:
    struct Segment {
        std::byte* at;
        std::uint64_t bytes;
    };
    static constexpr std::uint64_t kSmallestSegment = 8 * kExtentBytes, kLargestSegment = 128 * kExtentBytes;

    int set_up(const char* path) noexcept;
    static void remove_file(const char* path) noexcept;
    int keep_path(const char* path) noexcept;
    int keep_in_memory(const char* path) noexcept;
    int take_descriptor() noexcept;
    void write_zeros(std::uintptr_t start, std::uintptr_t end) const noexcept;
    int map_next(std::uint64_t offset, std::uint64_t bytes, std::byte** at) noexcept;
    int add_segment() noexcept;
    std::uint64_t used_bytes() const noexcept { return kFirstExtentOffset + header_->extents_used * kExtentBytes; }
    bool owns_descriptor() const noexcept;
    int reopen_if_lost() noexcept;
    void unmap() noexcept;

    Header* header_ = nullptr;
    std::uint32_t* directory_ = nullptr;
    int fd_ = -1;
    bool in_memory_ = false;
    std::uint64_t device_ = 0, inode_ = 0;
    PageVector<char> path_;
    PageVector<char> part_path_;  // where a copy is made before it takes its place at the path
    PageVector<Segment> segments_;
    std::uint64_t file_bytes_ = 0;
};

// What the disk or the format could not give.
struct NoRoom {
    int error;
};

// An append-only table of records in the capture. Records never move. Power-of-two sizes keep look-ups to a shift and a mask.
template <typename Record>
class FileTable {
public:
    static constexpr std::size_t kPerExtent = kExtentBytes / sizeof(Record);

    void attach(CaptureFile& file, Table table) {
        file_ = &file;
        table_ = table;
        chunks_.reset();
        ready_ = 0;
    }
    Record& operator[](std::uint64_t id) const { return chunks_[id / kPerExtent][id % kPerExtent]; }
    std::uint64_t size() const { return file_->header().table_count[static_cast<std::uint32_t>(table_)]; }

    bool needs_extent() const { return size() / kPerExtent >= chunks_.size(); }

    // The next record, not yet counted: fill it, then publish(). Throws NoRoom.
    Record& next() {
        const std::uint64_t id = size();
        if (id >= ready_) [[unlikely]]
            make_ready(id);
        return (*this)[id];
    }
    std::uint64_t publish() noexcept {
        auto& count = file_->header().table_count[static_cast<std::uint32_t>(table_)];
        __atomic_store_n(&count, count + 1, __ATOMIC_RELEASE);
        return count - 1;
    }
    std::uint64_t append(const Record& record) {
        next() = record;
        return publish();
    }

private:
    // Where pages are put ahead of their use, at first: most tables of a short run stay small.
    static constexpr std::uint64_t kFirstReady = 16 * 1024 / sizeof(Record);

    [[gnu::noinline]] void make_ready(std::uint64_t id) {
        const std::uint64_t chunk = id / kPerExtent;
        if (chunk >= chunks_.size()) add_chunk();
        const std::uint64_t wanted = id + std::max(id, kFirstReady), end = (chunk + 1) * kPerExtent;
        ready_ = std::min(wanted, end);
        file_->put_pages(&(*this)[id], (ready_ - id) * sizeof(Record));
    }
    void add_chunk() {
        const auto chunk = static_cast<std::uint32_t>(chunks_.size());
        chunks_.push_back(nullptr);
        try {
            chunks_[chunk] = reinterpret_cast<Record*>(file_->add_extent(table_, chunk));
        } catch (...) {
            chunks_.resize(chunk);
            throw;
        }
    }

    CaptureFile* file_ = nullptr;
    Table table_{};
    mutable PageVector<Record*> chunks_;
    std::uint64_t ready_ = 0;  // records there are pages for
};

// The schema text of this version, padded with spaces to kSchemaBytes.
void write_schema(char* out) noexcept;

}  // namespace hiwater::capture
