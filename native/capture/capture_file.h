// The capture as the recorder holds it: a mapped file that grows by segments, cut into extents that are handed to
// tables. Space is allocated on the disk before it is mapped, so that no store can meet a hole in a full file system
// (SIGBUS). Where the file system cannot do that, the capture is kept in memory and copied to its path from time to
// time and at the end. How the file comes to its name stands in placement.h.
#pragma once

#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/pages.h"
#include "base/uncopied.h"
#include "capture/file_guard.h"
#include "capture/format.h"
#include "capture/placement.h"

namespace hiwater::capture {

// A capture holds the program's arguments and its file names: it is its owner's alone, unless an option gives others
// access.
inline constexpr mode_t kPrivate = 0600;

// The sampler's thread and those that close slices write it: it never goes back, so that no peak has a time before its
// slice.
inline void raise_heartbeat(Header& header, std::uint64_t now_ns) noexcept {
    std::uint64_t last = __atomic_load_n(&header.heartbeat_ns, __ATOMIC_RELAXED);
    while (last < now_ns && !__atomic_compare_exchange_n(&header.heartbeat_ns, &last, now_ns, true, __ATOMIC_RELAXED,
                                                         __ATOMIC_RELAXED)) {
    }
}

class CaptureFile {
public:
    ~CaptureFile() { abandon(); }

    // Makes the file with a header and an empty directory, under a name of its own in the folder of `path`, with these
    // permissions exactly. Its descriptor is out of the program's way. Returns 0 or an errno value; on error no file of
    // ours is left.
    int create(const char* path, mode_t mode = kPrivate) noexcept;
    // Gives it its name, once its header identifies the process: the path it was created for, or one beside it where
    // another process's capture is (see placement.h). Returns 0 or an errno value; the caller then discards it.
    int publish() noexcept;
    const char* path() const { return path_.text; }
    // Whether the file system at the path can hold no mapped file: write_back() then puts copies there, each whole or
    // not at all.
    bool is_kept_in_memory() const { return in_memory_ && path_.text[0] != '\0'; }
    // Returns 0 or an errno value, ESTALE where the copy before is not at the path any more; does nothing for a capture
    // that is its file. The caller keeps everybody else out.
    int write_back() noexcept;
    // The same in memory that nobody else sees: for counting without a capture.
    int create_in_memory() noexcept;
    bool is_open() const { return header_ != nullptr; }
    // Whether somebody truncated the file, or wrote over it: then it is ours no more, and the tables are in memory that
    // goes at the end.
    bool is_truncated() const noexcept { return !in_memory_ && file_guard::is_truncated(); }
    // Asks the file, which otherwise is found out when the engine meets the hole.
    void find_truncation() const noexcept;
    Header& header() const { return *header_; }

    // A fresh extent for a table's next chunk. Throws NoRoom when the disk or the format has no more.
    std::byte* add_extent(Table table, std::uint32_t chunk);
    // Puts pages where records will be written soon. Nothing may have been written from `at` on.
    void put_pages(const void* at, std::size_t bytes) noexcept;
    // How much that was, in all.
    std::int64_t put_bytes() const noexcept { return __atomic_load_n(&put_bytes_, __ATOMIC_RELAXED); }
    // The opposite, for a whole extent, or for all of them: the pages stay in the file, and come back when they are
    // used.
    void give_pages_back(void* extent) const noexcept;
    void give_pages_back() const noexcept;
    // The same without those for which is_used(table, chunk, page) holds: the page is numbered within the chunk.
    template <typename IsUsed>
    void give_unused_pages_back(IsUsed is_used) const noexcept {
        constexpr std::uint64_t pages = kExtentBytes / kPage;
        std::uint32_t extent = 0;
        for (const Segment& segment : segments_) {
            std::uint64_t first = 0, page = 0;  // of the pages that are to go, and the next one
            const std::uint64_t end =
                std::min<std::uint64_t>(segment.bytes / kExtentBytes, extents_used_ - extent) * pages;
            for (; page < end; ++page) {
                const std::uint32_t entry = directory_[extent + page / pages];
                if (!is_used(static_cast<Table>(entry >> 24), entry & (kChunks - 1), page % pages)) continue;
                give_pages_back(segment.at + first * kPage, (page - first) * kPage);
                first = page + 1;
            }
            give_pages_back(segment.at + first * kPage, (page - first) * kPage);
            extent += static_cast<std::uint32_t>(end / pages);
        }
    }

    // What became of a capture's file while it was written.
    enum class Fate { kept, moved, out_of_reach, written_again, lost, cut };
    struct Ending {
        int error;  // 0, or why it could not be written
        Fate fate;
        PathBuffer path;  // where it is now
    };
    // Truncates the file to what is used and closes it; `state` is the last thing stored. A capture that was deleted
    // meanwhile is written again.
    Ending finish(State state) noexcept;
    // Closes a capture that never began, and deletes its file.
    void discard() noexcept;
    // Closes it and changes nothing.
    void abandon() noexcept;
    // For the child of a fork, whose parent continues to write: the pages are gone already.
    void forget_in_child() noexcept;
    std::uint64_t mapped_bytes() const noexcept;
    // What a copy has: the header and the extents in use.
    std::uint64_t used_bytes() const noexcept { return kFirstExtentOffset + extents_used_ * kExtentBytes; }
    mode_t mode() const noexcept { return mode_; }

private:
    friend class CaptureCopy;
    struct Segment {
        std::byte* at;
        std::uint64_t bytes;
    };
    // Behind the header: an account's kind that somebody else wrote into the file still counts within memory that is
    // ours.
    static constexpr std::uint64_t kMargin = (std::uint64_t{UINT16_MAX} + 1) * sizeof(std::int64_t);
    static constexpr std::uint32_t kChunks = 1u << 24;  // of a table, at most: the directory has both in one word
    static constexpr std::uint64_t kSmallestSegment = 8 * kExtentBytes, kLargestSegment = 128 * kExtentBytes;

    int set_up() noexcept;
    int note_identity(int fd) noexcept;
    bool is_in_place() const noexcept { return is_at(path_.text, device_, inode_); }
    void give_pages_back(void* at, std::uint64_t bytes) const noexcept;
    int write_to(int fd, std::uint64_t snapshot_ns) const noexcept;
    int copy_to_temporary(const char* path, PathBuffer* made) const noexcept;
    void find_again(Ending* ending) noexcept;
    void write_zeros(std::uintptr_t start, std::uintptr_t end) const noexcept;
    int map_next(std::uint64_t offset, std::uint64_t bytes, std::uint64_t margin, std::byte** at) noexcept;
    int add_segment() noexcept;
    bool is_ours(struct stat* about) const noexcept;
    bool owns_descriptor() const noexcept;
    bool is_long_enough() const noexcept;
    int reopen_if_lost() noexcept;
    void unmap() noexcept;

    Header* header_ = nullptr;
    std::uint32_t* directory_ = nullptr;
    int fd_ = -1;
    bool in_memory_ = false;
    mode_t mode_ = kPrivate;
    dev_t device_ = 0;
    ino_t inode_ = 0;
    PathBuffer path_;  // of the capture, "" for one that nobody else sees
    PathBuffer made_;  // its name until it is published
    PageVector<Segment> segments_;
    std::uint64_t file_bytes_ = 0;
    std::int64_t put_bytes_ = 0;
    const std::byte* end_ = nullptr;  // of what is mapped last
    std::uint32_t extents_used_ = 0, pid_ = 0;
    std::uint64_t started_unix_ns_ = 0;  // with pid_, what the header of our own file says
};

// A copy of the used part in another file, in three steps. Only the second needs everybody else kept out, and it is
// short: the first one makes the pages of the file, which takes most of the time. Each returns 0 or an errno value. A
// copy that does not get to its end leaves nothing.
class CaptureCopy : Uncopied {
public:
    ~CaptureCopy();
    // Makes a file of this size in the folder of `path`.
    int begin(const char* path, mode_t mode, std::uint64_t bytes) noexcept;
    // Writes the content. The copy's header says that it is a snapshot of `now_ns`. EBUSY where `path` is the capture
    // itself, ESTALE for one that was truncated.
    int fill(const CaptureFile& file, std::uint64_t now_ns) noexcept;
    // Moves the file to `path`, as place() does.
    int end() noexcept;

private:
    int fd_ = -1;
    PathBuffer path_, made_;
};

// What became of a capture's file, for people; "" where nothing did.
const char* in_words(CaptureFile::Fate fate) noexcept;

// What the disk or the format could not give.
struct NoRoom {
    int error;
};

// An append-only table of records in the capture. Records never move. Power-of-two sizes keep look-ups to a shift and a
// mask.
template <typename Record>
class FileTable {
public:
    static constexpr std::size_t kPerExtent = kExtentBytes / sizeof(Record);

    void attach(CaptureFile& file, Table table) {
        file_ = &file;
        table_ = table;
        chunks_.reset();
        ready_ = count_ = 0;
    }
    Record& operator[](std::uint64_t id) const {
        return *reinterpret_cast<Record*>(chunks_[id / kPerExtent] + id * sizeof(Record));
    }
    std::uint64_t size() const { return count_; }

    bool needs_extent() const { return size() / kPerExtent >= chunks_.size(); }

    // The next record, not yet counted: fill it, then publish(). Throws NoRoom.
    Record& next() {
        const std::uint64_t id = size();
        if (id >= ready_) [[unlikely]]
            make_ready(id);
        return (*this)[id];
    }
    std::uint64_t publish() noexcept {
        set_size(count_ + 1);
        return count_ - 1;
    }
    // For records that are not of one length: what comes before is counted from here on.
    void set_size(std::uint64_t count) noexcept {
        count_ = count;
        __atomic_store_n(&file_->header().table_count[static_cast<std::uint32_t>(table_)], count, __ATOMIC_RELEASE);
    }
    std::uint64_t append(const Record& record) {
        next() = record;
        return publish();
    }

private:
    // Where pages are put ahead of their use, at first: most tables of a short run stay small.
    static constexpr std::uint64_t kFirstReady = kPage / sizeof(Record);

    [[gnu::noinline]] void make_ready(std::uint64_t id) {
        const std::uint64_t chunk = id / kPerExtent;
        if (chunk >= chunks_.size()) add_chunk();
        const std::uint64_t wanted = id + std::max(id / 8, kFirstReady), end = (chunk + 1) * kPerExtent;
        ready_ = std::min(wanted, end);
        file_->put_pages(&(*this)[id], (ready_ - id) * sizeof(Record));
    }
    // Of what is not read again once another record follows it, the pages of a full extent leave the process's resident
    // memory. The file has them.
    static constexpr bool is_only_appended(Table table) noexcept {
        return table == Table::timeline || table == Table::slice_entries || table == Table::pressure ||
               table == Table::relatives;
    }
    void add_chunk() {
        const auto chunk = static_cast<std::uint32_t>(chunks_.size());
        const std::uint64_t first = chunk * kPerExtent;
        chunks_.push_back(0);
        try {
            chunks_[chunk] =
                reinterpret_cast<std::uintptr_t>(file_->add_extent(table_, chunk)) - first * sizeof(Record);
            if (chunk != 0 && is_only_appended(table_)) file_->give_pages_back(&(*this)[first - kPerExtent]);
        } catch (...) {
            chunks_.resize(chunk);
            throw;
        }
    }

    CaptureFile* file_ = nullptr;
    Table table_{};
    // Of each chunk, where the record of number 0 would be if it went back as far: that takes no mask.
    mutable PageVector<std::uintptr_t> chunks_;
    // The engine reads its own number and not the header's: others may write to the file (file_guard.h).
    std::uint64_t count_ = 0;
    std::uint64_t ready_ = 0;  // records there are pages for
};

// The schema text of this version, padded with spaces to kSchemaBytes.
void write_schema(char* out) noexcept;

}  // namespace hiwater::capture
