// Facts about this process from the kernel.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/own_file.h"

namespace hiwater::process {

struct Resident {
    std::int64_t now_bytes = 0;
    std::int64_t peak_bytes = 0;  // the kernel's peak, VmHWM
};

bool is_main_thread() noexcept;
bool read_status(Resident* out) noexcept;
struct Shared {
    std::int64_t excess_bytes =
        -1;  // RSS minus PSS: what other processes count of the pages that this one shares with them
    std::int64_t private_bytes = -1;
    std::int64_t resident_bytes = -1;
    // Of these, pages of files and of shared memory, and what others count of them: RSS minus PSS. Before Linux 5.3,
    // which does not tell PSS by kind, as much of the excess as there are such pages.
    std::int64_t mapped_bytes = -1, mapped_excess_bytes = -1;
};
// From smaps_rollup: the kernel visits every resident page, which takes about a millisecond for 100 MiB.
bool read_shared(Shared* out, pid_t pid = 0) noexcept;  // 0: of this process
struct Sizes {
    std::int64_t address_space_bytes = -1, resident_bytes = -1;
    std::int64_t mapped_bytes = -1;  // resident pages of files and of shared memory
};
// From an open /proc/self/statm; -1 where it cannot be read.
Sizes read_statm(int fd) noexcept;
// The same from a file of ours.
Sizes sizes() noexcept;
inline std::int64_t resident_bytes() noexcept { return sizes().resident_bytes; }
// The number that a file of cgroupfs holds; -1 for "max", for v1's way of saying it, and where there is none.
std::int64_t read_number(OwnFile& file) noexcept;
// ru_maxrss, for a tenth of what /proc takes: the kernel's peak, or that of a program which this process was before an
// exec.
std::int64_t maximum_resident() noexcept;
std::int64_t page_faults() noexcept;         // of this process, without those that waited for a disk
std::int64_t thread_page_faults() noexcept;  // the same of this thread
std::int64_t available_bytes() noexcept;     // MemAvailable of the machine, or -1
// The number after `key` in a small file; -1 where there is none.
std::int64_t read_entry(OwnFile& file, const char* key) noexcept;
// For the end of a scope: reads what is resident now and the kernel's peak since its last reset, and resets it. The
// descriptors are the caller's, kept open; `clear_refs` is written to, so it must still be the file with that inode.
// `lowest_maximum` is the lowest ru_maxrss ever seen: that figure survives exec, and is the present peak only where it
// is above all before. False: read it otherwise.
struct ResidentFiles {
    int statm, status, clear_refs;
    std::uint64_t clear_refs_inode, clear_refs_device;
};
bool read_and_reset_resident(const ResidentFiles& files, std::int64_t* lowest_maximum, Resident* out) noexcept;
// Resets the kernel's peak to what is resident now; false where the kernel or the sandbox does not allow it.
bool reset_peak() noexcept;
// The most by which the peak may be off: since Linux 6.2 each CPU keeps back up to max(32, 2 * CPUs) pages of each
// counter, and resident memory is the sum of three.
std::int64_t peak_error_bytes() noexcept;
struct Stat {
    // Field 22 of /proc/PID/stat, which distinguishes a process from a later one with its pid; 0 where there is none,
    // or only its exit status is left.
    std::uint64_t start_ticks = 0;
    int threads = -1;
    std::int64_t page_faults = 0;  // that needed no reading of a file
    std::int64_t resident_pages = 0;
};
Stat read_stat(pid_t pid = 0) noexcept;  // 0: of this process
// The numbers below it have a place in this process's table of open files. Where there are several threads, the kernel
// takes some 10 ms to enlarge that table. INT_MAX where it is not known.
int descriptors_end() noexcept;
// Calls visit(name) for each entry of a folder of /proc whose name is a number, and throws what that throws. readdir()
// would take a buffer from the heap.
void each_number_in(OwnFile& folder, void (*visit)(const char* name, void* context), void* context);
// Appends the numbers of a process's children, as far as there is room; returns how many there are then.
int add_children(pid_t parent, pid_t* numbers, int count, int room) noexcept;
void read_boot_id(char out[40]) noexcept;
std::uint64_t monotonic_ns() noexcept;
std::uint64_t coarse_monotonic_ns() noexcept;  // the same some milliseconds ago, for a fifth of the time
std::uint64_t wall_ns() noexcept;
struct Moment {
    std::uint64_t wall_ns = process::wall_ns(), monotonic_ns = process::monotonic_ns();
};
std::uint64_t thread_ns() noexcept;   // of the processor's, for this thread
std::uint64_t process_ns() noexcept;  // the same for all threads
// Whether what this thread began then, and has used so much of the processor's time for, had to wait for long.
bool was_delayed(std::uint64_t from_ns, std::uint64_t used_ns) noexcept;

}  // namespace hiwater::process
