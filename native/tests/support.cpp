#include "support.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace hiwater::tests {

using capture::Table;

namespace {

std::uint64_t from_environment(const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

}  // namespace

bool is_slow_machine() { return from_environment("HIWATER_TEST_SHARE") >= 10; }

void for_seeds(std::uint64_t count, const std::function<void(Trace&)>& test) {
    const std::uint64_t only = from_environment("HIWATER_TEST_SEED");
    const std::uint64_t share = from_environment("HIWATER_TEST_SHARE");
    if (share > 1) count = (count + share - 1) / share;
    const std::uint64_t first = only != 0 ? only : 1, last = only != 0 ? only : count;
    for (std::uint64_t seed = first; seed <= last; ++seed) {
        INFO("run this trace alone with HIWATER_TEST_SEED=", seed);
        Trace trace(seed);
        test(trace);
    }
}

Folder::Folder() {
    std::string made = (std::filesystem::temp_directory_path() / "hiwater-native-XXXXXX").string();
    if (::mkdtemp(made.data()) == nullptr) throw std::runtime_error("no temporary folder can be made");
    path_ = made;
}

Folder::~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

int make(capture::CaptureFile& file, const std::string& path) {
    int error = file.create(path.c_str());
    if (error == 0) error = file.publish();
    if (error != 0) file.discard();
    return error;
}

int snapshot(const capture::CaptureFile& file, const char* path, std::uint64_t now_ns) {
    capture::CaptureCopy copy;
    int error = copy.begin(path, file.mode(), file.used_bytes());
    if (error == 0) error = copy.fill(file, now_ns);
    return error == 0 ? copy.end() : error;
}

void in_threads(std::size_t count, const std::function<void(std::size_t)>& work) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work, i);
    for (std::thread& thread : threads) thread.join();
}

int in_child(const std::function<int()>& harm) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(harm());
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) throw std::runtime_error("no child process can be made");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

FileView::FileView(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about{};
    if (fd < 0 || ::fstat(fd, &about) != 0) throw std::runtime_error("cannot open " + path);
    bytes_ = static_cast<std::uint64_t>(about.st_size);
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    if (mapped == MAP_FAILED) throw std::runtime_error("cannot map " + path);
    at_ = static_cast<const char*>(mapped);
}

FileView::~FileView() { ::munmap(const_cast<char*>(at_), bytes_); }

const char* FileView::chunk_of(Table table, std::uint32_t chunk) const {
    const capture::Header& h = header();
    const auto* directory = reinterpret_cast<const std::uint32_t*>(at_ + h.directory_offset);
    const std::uint32_t wanted = static_cast<std::uint32_t>(table) << 24 | chunk;
    for (std::uint32_t i = 0; i < h.extents_used; ++i) {
        if (directory[i] != wanted) continue;
        const std::uint64_t offset = h.first_extent_offset + i * h.extent_bytes;
        return offset + h.extent_bytes <= bytes_ ? at_ + offset : nullptr;
    }
    return nullptr;
}

bool FileView::is_whole() const {
    const std::string schema(at_ + header().schema_offset, header().schema_bytes), key = "\"record_bytes\":";
    std::size_t at = 0;
    for (std::uint32_t t = 0; t < capture::kTables; ++t) {
        at = schema.find(key, at) + key.size();
        const std::uint64_t per_extent = header().extent_bytes / std::stoul(schema.substr(at, 20));
        const std::uint64_t chunks = (header().table_count[t] + per_extent - 1) / per_extent;
        for (std::uint32_t chunk = 0; chunk < chunks; ++chunk)
            if (chunk_of(static_cast<Table>(t), chunk) == nullptr) return false;
    }
    return true;
}

std::string FileView::text(std::uint32_t string) const {
    const auto& record = this->record<capture::StringRecord>(Table::strings, string);
    return record.length == 0 ? std::string()
                              : std::string(&this->record<char>(Table::string_bytes, record.offset), record.length);
}

FileView::Figures FileView::at_slice_peak(std::uint32_t account) const {
    const auto& l = record<capture::AccountRecord>(Table::accounts, account);
    return l.generation == header().generation ? Figures{l.saved_bytes, l.saved_blocks}
                                               : Figures{l.live_bytes, l.live_blocks};
}

FileView::Figures FileView::at_peak(std::uint32_t account) const {
    if (header().slice_peak_bytes > header().epoch[header().epoch_index].peak_bytes) return at_slice_peak(account);
    const auto& cold = record<capture::AccountPeakRecord>(Table::account_peaks, account);
    return {cold.peak_bytes, cold.peak_blocks};
}

FileView::Figures FileView::peak() const {
    const capture::EpochRecord& epoch = header().epoch[header().epoch_index];
    if (header().slice_peak_bytes > epoch.peak_bytes) return {header().slice_peak_bytes, header().slice_peak_blocks};
    return {epoch.peak_bytes, epoch.peak_blocks};
}

std::string read_whole(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

}  // namespace hiwater::tests
