// Facts about processes that no function of POSIX tells: they are not known.
#include <limits.h>
#include <sys/resource.h>

#include <cstring>

#include "base/own_library.h"
#include "base/pagemap.h"
#include "base/process.h"

namespace hiwater::process {

bool read_status(Resident*) noexcept { return false; }
bool read_shared(Shared*, pid_t) noexcept { return false; }
Sizes read_statm(int) noexcept { return {}; }
Sizes sizes() noexcept { return {}; }
std::int64_t read_number(OwnFile&) noexcept { return -1; }
std::int64_t read_entry(OwnFile&, const char*) noexcept { return -1; }
std::int64_t maximum_resident() noexcept { return 0; }
std::int64_t page_faults() noexcept { return 0; }
std::int64_t thread_page_faults() noexcept { return 0; }
std::int64_t available_bytes() noexcept { return -1; }
bool read_and_reset_resident(const ResidentFiles&, std::int64_t*, Resident*) noexcept { return false; }
bool reset_peak() noexcept { return false; }
std::int64_t peak_error_bytes() noexcept { return 0; }
Stat read_stat(pid_t) noexcept { return {}; }
int descriptors_end() noexcept { return INT_MAX; }
int add_children(pid_t, pid_t*, int count, int) noexcept { return count; }
void read_boot_id(char out[40]) noexcept { std::memset(out, 0, 40); }

}  // namespace hiwater::process

namespace hiwater {

Pagemap::Pagemap(bool) noexcept : file_(own_files::pages) {}

Pagemap::Found Pagemap::find(Kind, std::uintptr_t from, std::uintptr_t, Range*, std::size_t, bool) const noexcept {
    return {0, from};
}

}  // namespace hiwater
