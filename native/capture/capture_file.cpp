// The capture file. Longer than 400 lines because creating, growing, publishing and finishing it keep one order of
// stores: that order makes the file readable after a kill at any point.
#include "capture/capture_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <utility>

#include "base/errno_kept.h"
#include "base/file_size_signal.h"
#include "base/own_file.h"
#include "base/raw_calls.h"
#include "base/uncancelled.h"

namespace hiwater::capture {

namespace {

// With no file (-1) it is memory that a forked child shares: a private copy would cost the parent a fault for each
// page. Behind it, `margin` bytes of memory that is no file's.
std::byte* map_shared(int fd, std::uint64_t offset, std::uint64_t bytes, std::uint64_t margin) noexcept {
    const int flags = fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    void* at = margin != 0 ? map_pages(bytes + margin, Use::shared) : own_place(bytes);
    if (margin != 0 && at == nullptr) return nullptr;
    if (margin == 0) own_limit.add(bytes);
    void* p = map_with_spare(bytes, [&] {
        return raw::mmap(at, bytes, PROT_READ | PROT_WRITE, flags | (margin != 0 ? MAP_FIXED : 0), fd,
                         static_cast<off_t>(offset));
    });
    if (p == MAP_FAILED) {
        const int error = errno;
        margin != 0 ? unmap_pages(at, bytes + margin) : own_limit.remove(bytes);
        errno = error;
        return nullptr;
    }
    if (margin == 0) own_ranges.add(p, bytes, Use::shared);
    return static_cast<std::byte*>(p);
}

int write_all(int fd, const void* data, std::uint64_t bytes) noexcept {
    const FileSizeSignalHeld held;
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t n = raw::write(fd, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        at += n;
        bytes -= static_cast<std::uint64_t>(n);
    }
    return 0;
}

// The errors of a file system that supports no shared mappings (FUSE with direct_io, 9p, some network file systems) or
// no allocation.
bool cannot_map(int error) noexcept {
    return error == ENODEV || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL || error == EACCES ||
           error == EPERM;
}

}  // namespace

int CaptureFile::create(const char* path, mode_t mode) noexcept {
    mode_ = mode;
    in_memory_ = false;
    fd_ = create_temporary(path, mode, &made_);
    if (fd_ < 0) {
        made_.text[0] = '\0';
        return errno;
    }
    int error = path_.set(path) ? set_up() : ENAMETOOLONG;
    if (error == 0) return 0;
    discard();
    if (!cannot_map(error)) return error;
    // A file that is copied to need not be mapped: publish() puts the first copy there.
    path_.set(path);
    in_memory_ = true;
    error = set_up();
    if (error != 0) abandon();
    return error;
}

int CaptureFile::publish() noexcept {
    if (in_memory_) {
        if (int error = copy_to_temporary(path_.text, &made_)) return error;
        const int fd = raw::open(made_.text, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        const int error = fd < 0 ? errno : note_identity(fd);
        if (fd >= 0) raw::close(fd);
        if (error != 0) return error;
    }
    PathBuffer placed;
    if (int error = place_or_evade(made_.text, path_.text, &placed)) return error;
    path_ = placed;
    made_.text[0] = '\0';
    pid_ = header_->pid;
    started_unix_ns_ = header_->started_unix_ns;
    return 0;
}

int CaptureFile::write_back() noexcept {
    if (!is_kept_in_memory()) return 0;
    if (!is_in_place()) return ESTALE;
    PathBuffer made;
    if (int error = copy_to_temporary(path_.text, &made)) return error;
    struct stat about{};
    int error = ::lstat(made.text, &about) == 0 && ::rename(made.text, path_.text) == 0 ? 0 : errno;
    if (error != 0) ::unlink(made.text);
    if (error == 0) device_ = about.st_dev, inode_ = about.st_ino;
    return error;
}

int CaptureFile::create_in_memory() noexcept {
    in_memory_ = true;
    const int error = set_up();
    if (error != 0) abandon();
    return error;
}

int CaptureFile::set_up() noexcept {
    int error = in_memory_ ? 0 : note_identity(fd_);
    std::byte* base = nullptr;
    if (error == 0) error = map_next(0, kFirstExtentOffset, kMargin, &base);
    if (error != 0) return error;
    file_bytes_ = kFirstExtentOffset;
    end_ = base + kFirstExtentOffset;
    header_ = reinterpret_cast<Header*>(base);
    directory_ = reinterpret_cast<std::uint32_t*>(base + kDirectoryOffset);
    Header& h = *header_;
    h.version = kVersion;
    h.header_bytes = kHeaderBytes;
    h.extent_bytes = kExtentBytes;
    h.schema_offset = kHeaderBytes;
    h.schema_bytes = kSchemaBytes;
    h.directory_offset = kDirectoryOffset;
    h.first_extent_offset = kFirstExtentOffset;
    h.max_extents = kMaxExtents;
    h.counted_kinds = kCountedKinds;
    h.table_total = kTables;
    h.exit_code = -1;
    h.shared_excess_bytes = -1;
    write_schema(reinterpret_cast<char*>(base) + kHeaderBytes);
    return 0;
}

int CaptureFile::note_identity(int fd) noexcept {
    struct stat about{};
    if (raw::fstat(fd, &about) != 0) return errno;
    device_ = about.st_dev;
    inode_ = about.st_ino;
    return 0;
}

// Allocates and maps a stretch at the end of what there is.
int CaptureFile::map_next(std::uint64_t offset, std::uint64_t bytes, std::uint64_t margin, std::byte** at) noexcept {
    if (!in_memory_) {
        const FileSizeSignalHeld held;
        const Uncancelled whole;
        if (int error = platform::allocate(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes))) return error;
    }
    *at = map_shared(in_memory_ ? -1 : fd_, in_memory_ ? 0 : offset, bytes, margin);
    if (*at == nullptr) return errno;
    if (!in_memory_) file_guard::add(*at, bytes);
    // For the first page of a file the kernel reads the megabyte around it, though there is nothing yet but zeros to
    // read.
    if (bytes <= kSmallestSegment) platform::expect_random_access(*at, bytes);
    return 0;
}

// The program may have closed our descriptor, or given its number to another file.
bool CaptureFile::is_ours(struct stat* about) const noexcept {
    const int fd = __atomic_load_n(&fd_, __ATOMIC_RELAXED);
    return fd >= 0 && raw::fstat(fd, about) == 0 && about->st_dev == device_ && about->st_ino == inode_;
}

bool CaptureFile::owns_descriptor() const noexcept {
    struct stat about{};
    return is_ours(&about);
}

int CaptureFile::reopen_if_lost() noexcept {
    if (in_memory_ || owns_descriptor()) return 0;
    const int fd = open_high(made_.text[0] != '\0' ? made_.text : path_.text, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    __atomic_store_n(&fd_, fd, __ATOMIC_RELAXED);
    if (fd < 0) return errno;
    if (owns_descriptor()) return 0;
    raw::close(fd);
    __atomic_store_n(&fd_, -1, __ATOMIC_RELAXED);
    return ESTALE;
}

int CaptureFile::add_segment() noexcept {
    std::uint64_t bytes = kSmallestSegment;
    while (bytes < kLargestSegment && bytes * 8 < file_bytes_) bytes *= 2;
    if (int error = reopen_if_lost()) return error;
    find_truncation();
    if (is_truncated()) return ESTALE;
    std::byte* at = nullptr;
    int error = map_next(file_bytes_, bytes, 0, &at);
    // Near a limit of address space there may be room for less.
    if (error == ENOMEM) error = map_next(file_bytes_, bytes = kSmallestSegment, 0, &at);
    if (error != 0) return error;
    try {
        segments_.push_back({at, bytes});
    } catch (const std::bad_alloc&) {
        file_guard::remove(at);
        unmap_pages(at, bytes);
        return ENOMEM;
    }
    __atomic_store_n(&file_bytes_, file_bytes_ + bytes, __ATOMIC_RELEASE);
    __atomic_store_n(&end_, at + bytes, __ATOMIC_RELEASE);
    return 0;
}

std::byte* CaptureFile::add_extent(Table table, std::uint32_t chunk) {
    const std::uint32_t number = extents_used_;
    if (number >= kMaxExtents || chunk >= kChunks) throw NoRoom{EFBIG};
    const std::uint64_t offset = kFirstExtentOffset + number * kExtentBytes;
    if (offset + kExtentBytes > file_bytes_) {
        if (int error = add_segment()) throw NoRoom{error};
    }
    const Segment& last = segments_[segments_.size() - 1];
    directory_[number] = static_cast<std::uint32_t>(table) << 24 | chunk;
    // The header's first, for find_truncation().
    __atomic_store_n(&header_->extents_used, number + 1, __ATOMIC_RELEASE);
    __atomic_store_n(&extents_used_, number + 1, __ATOMIC_RELEASE);
    return last.at + (offset - (file_bytes_ - last.bytes));
}

void CaptureFile::put_pages(const void* at, std::size_t bytes) noexcept {
    if (in_memory_ || is_truncated()) return;
    const auto start = reinterpret_cast<std::uintptr_t>(at), end = start + bytes;
    write_zeros(round_up(start, kPage), end & ~(kPage - 1));
    const std::uintptr_t first = start & ~(kPage - 1);
    const std::uintptr_t fresh = round_up(end, kPage) - round_up(start, kPage);
    touch_pages(reinterpret_cast<void*>(first), end - first, fresh);
    __atomic_fetch_add(&put_bytes_, static_cast<std::int64_t>(fresh), __ATOMIC_RELAXED);
}

void CaptureFile::give_pages_back(void* extent) const noexcept { give_pages_back(extent, kExtentBytes); }

void CaptureFile::give_pages_back() const noexcept {
    for (const Segment& segment : segments_) give_pages_back(segment.at, segment.bytes);
}

void CaptureFile::give_pages_back(void* at, std::uint64_t bytes) const noexcept {
    const ErrnoKept kept;
    if (bytes != 0 && !is_truncated()) platform::give_file_back(at, bytes);
}

// Writes zeros over whole pages that are zero already. A file system makes the pages of a write in larger pieces.
// Faults make them one by one, which takes twice as long.
void CaptureFile::write_zeros(std::uintptr_t start, std::uintptr_t end) const noexcept {
    static const char zeros[32 * 1024] = {};
    const Segment& last = segments_[segments_.size() - 1];
    const auto at = reinterpret_cast<std::uintptr_t>(last.at);
    if (end < start + sizeof zeros || start < at || end > at + last.bytes || !owns_descriptor()) return;
    const ErrnoKept kept;
    const FileSizeSignalHeld held;
    const std::uint64_t offset = file_bytes_ - last.bytes;
    for (; end - start >= sizeof zeros; start += sizeof zeros)
        if (raw::pwrite(fd_, zeros, sizeof zeros, static_cast<off_t>(offset + (start - at))) < 0)
            break;  // it is for speed alone
}

void CaptureFile::unmap() noexcept {
    Header* const header = std::exchange(header_, nullptr);
    std::atomic_signal_fence(
        std::memory_order_seq_cst);  // a signal's handler that ends the process looks whether there is one
    file_guard::remove(header);
    unmap_pages(header, kFirstExtentOffset + kMargin);
    for (std::size_t i = 0; i < segments_.size(); ++i) {
        file_guard::remove(segments_[i].at);
        unmap_pages(segments_[i].at, segments_[i].bytes);
    }
    segments_.reset();
    path_.text[0] = made_.text[0] = '\0';
    directory_ = nullptr;
    file_bytes_ = 0;
    put_bytes_ = 0;
    extents_used_ = 0;
}

CaptureFile::Ending CaptureFile::finish(State state) noexcept {
    Ending ending{0, Fate::kept, path_};
    if (header_ == nullptr) return ending;
    find_truncation();
    if (is_truncated()) {
        ending.fate = Fate::cut;
        abandon();
        return ending;
    }
    const std::uint64_t used = used_bytes();
    if (!in_memory_ && reopen_if_lost() == 0 && raw::ftruncate(fd_, static_cast<off_t>(used)) != 0) {
        // A longer file reads the same; only the unused tail stays on the disk.
    }
    __atomic_store_n(&header_->state, static_cast<std::uint32_t>(state), __ATOMIC_RELEASE);
    if (path_.text[0] != '\0') {
        if (!is_in_place()) {
            find_again(&ending);
        } else {
            ending.error = write_back();
        }
    }
    abandon();
    return ending;
}

// The name leads elsewhere, or nowhere: somebody deleted the file, or gave it another name, or the program has another
// root folder.
void CaptureFile::find_again(Ending* ending) noexcept {
    struct stat about{};
    if (!in_memory_ && owns_descriptor() && raw::fstat(fd_, &about) == 0 && about.st_nlink > 0) {
        char link[32];
        ::snprintf(link, sizeof link, "/proc/self/fd/%d", fd_);
        char now[sizeof ending->path.text];
        const ssize_t n = ::readlink(link, now, sizeof now - 1);
        now[n > 0 ? n : 0] = '\0';
        const bool is_moved = n > 0 && ::strcmp(now, ending->path.text) != 0;
        ending->fate = is_moved ? Fate::moved : Fate::out_of_reach;  // after a chroot, often without /proc
        if (is_moved) ending->path.set(now);
        return;
    }
    PathBuffer made;
    ending->error = copy_to_temporary(path_.text, &made);
    if (ending->error == 0) {
        ending->error = place_or_evade(made.text, path_.text, &ending->path, Over::nothing);
        if (ending->error != 0) ::unlink(made.text);
    }
    ending->fate = ending->error == 0 ? Fate::written_again : Fate::lost;
}

void CaptureFile::discard() noexcept {
    if (made_.text[0] != '\0') {
        ::unlink(made_.text);
    } else if (path_.text[0] != '\0' && is_in_place()) {
        ::unlink(path_.text);
    }
    abandon();
}

void CaptureFile::abandon() noexcept {
    unmap();
    if (owns_descriptor()) raw::close(fd_);
    fd_ = -1;
}

void CaptureFile::forget_in_child() noexcept {
    if (owns_descriptor()) raw::close(fd_);
    ::new (static_cast<void*>(this)) CaptureFile();
}

// The last page, and what only a recorder writes at the start. The sampler looks while another thread adds extents.
// By its descriptor for a tenth of what the pages take.
bool CaptureFile::is_long_enough() const noexcept {
    const std::uint64_t bytes = __atomic_load_n(&file_bytes_, __ATOMIC_ACQUIRE);
    struct stat about{};
    if (is_ours(&about)) return static_cast<std::uint64_t>(about.st_size) >= bytes;
    const std::byte* end = __atomic_load_n(&end_, __ATOMIC_ACQUIRE);
    return file_guard::has_page(header_) && file_guard::has_page(end - 1);
}

void CaptureFile::find_truncation() const noexcept {
    if (in_memory_ || header_ == nullptr || made_.text[0] != '\0' || is_truncated()) return;
    const std::uint32_t before = __atomic_load_n(&extents_used_, __ATOMIC_ACQUIRE);
    if (is_long_enough() && header_->started_unix_ns == started_unix_ns_ && header_->pid == pid_) {
        const std::uint32_t in_file = __atomic_load_n(&header_->extents_used, __ATOMIC_ACQUIRE);
        const std::uint32_t after = __atomic_load_n(&extents_used_, __ATOMIC_ACQUIRE);
        if (in_file >= before && in_file <= after + 1) return;
    }
    file_guard::cut();
}

CaptureCopy::~CaptureCopy() {
    if (fd_ >= 0) raw::close(fd_);
    if (made_.text[0] != '\0') ::unlink(made_.text);
}

int CaptureCopy::begin(const char* path, mode_t mode, std::uint64_t bytes) noexcept {
    static const char zeros[64 * 1024] = {};
    if (!path_.set(path)) return ENAMETOOLONG;
    fd_ = create_temporary(path, mode, &made_);
    if (fd_ < 0) {
        made_.text[0] = '\0';
        return errno;
    }
    int error = 0;
    for (std::uint64_t left = bytes; left > 0 && error == 0;) {
        const std::uint64_t part = left < sizeof zeros ? left : sizeof zeros;
        error = write_all(fd_, zeros, part);
        left -= part;
    }
    return error != 0 || raw::lseek(fd_, 0, SEEK_SET) == 0 ? error : errno;
}

int CaptureCopy::fill(const CaptureFile& file, std::uint64_t now_ns) noexcept {
    if (file.is_truncated()) return ESTALE;
    if (is_at(path_.text, file.device_, file.inode_)) return EBUSY;
    return file.write_to(fd_, now_ns);
}

int CaptureCopy::end() noexcept {
    int error = raw::close(std::exchange(fd_, -1)) == 0 ? 0 : errno;
    if (error == 0) error = place(made_.text, path_.text);
    if (error == 0) made_.text[0] = '\0';
    return error;
}

int CaptureFile::copy_to_temporary(const char* path, PathBuffer* made) const noexcept {
    const int out = create_temporary(path, mode_, made);
    if (out < 0) return errno;
    int error = write_to(out, 0);
    if (raw::close(out) != 0 && error == 0) error = errno;
    if (error != 0) {
        ::unlink(made->text);
        made->text[0] = '\0';
    }
    return error;
}

int CaptureFile::write_to(int fd, std::uint64_t snapshot_ns) const noexcept {
    Header header = *header_;
    header.snapshot_ns = snapshot_ns;
    int error = write_all(fd, &header, sizeof header);
    if (error == 0) error = write_all(fd, header_ + 1, kFirstExtentOffset - sizeof header);
    std::uint64_t left = extents_used_ * kExtentBytes;
    for (std::size_t i = 0; i < segments_.size() && left > 0 && error == 0; ++i) {
        const std::uint64_t part = left < segments_[i].bytes ? left : segments_[i].bytes;
        error = write_all(fd, segments_[i].at, part);
        left -= part;
    }
    return error;
}

std::uint64_t CaptureFile::mapped_bytes() const noexcept { return file_bytes_; }

const char* in_words(CaptureFile::Fate fate) noexcept {
    switch (fate) {
        case CaptureFile::Fate::kept:
            break;
        case CaptureFile::Fate::moved:
            return "the capture was moved while it was written: it is complete, under its new name";
        case CaptureFile::Fate::out_of_reach:
            return "the program has another root folder than at its start: the capture is complete, at its path "
                   "outside of that";
        case CaptureFile::Fate::written_again:
            return "the capture was deleted or replaced while it was written: it has been written again and is "
                   "complete";
        case CaptureFile::Fate::cut:
            return "what was recorded is lost; the figures are the last ones from before the capture was truncated";
        case CaptureFile::Fate::lost:
            return "the capture was deleted or replaced while it was written, and is lost";
    }
    return "";
}

}  // namespace hiwater::capture
