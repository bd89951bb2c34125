// What the tests share: seeded traces of random events, temporary folders, and a child process to do harm in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "capture/capture_file.h"
#include "doctest.h"

namespace hiwater::tests {

// A source of random events that its seed alone decides (splitmix64).
class Trace {
public:
    explicit Trace(std::uint64_t seed) : seed_(seed), state_(seed) {}

    std::uint64_t seed() const { return seed_; }
    std::uint64_t word() {
        std::uint64_t x = state_ += 0x9e3779b97f4a7c15ULL;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
        x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
        return x ^ x >> 31;
    }
    std::uint64_t below(std::uint64_t limit) { return word() % limit; }
    bool one_in(std::uint64_t n) { return below(n) == 0; }
    template <typename T>
    const T& pick(const std::vector<T>& from) {
        return from[below(from.size())];
    }

private:
    std::uint64_t seed_, state_;
};

// Runs `test` for `count` seeds, and names the seed of a failure. HIWATER_TEST_SEED=n runs that seed alone;
// HIWATER_TEST_SHARE=n runs one in n, for the gate and for valgrind.
void for_seeds(std::uint64_t count, const std::function<void(Trace&)>& test);

// Whether HIWATER_TEST_SHARE is 10 or more: valgrind or an emulator, where some things cannot be done at all.
bool is_slow_machine();

// A folder that goes with the test.
class Folder {
public:
    Folder();
    ~Folder();
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    std::string file(const char* name) const { return path_ + "/" + name; }
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// Makes a capture and gives it its name. Returns 0 or an errno value; on error there is none.
int make(capture::CaptureFile& file, const std::string& path);

// A copy of the capture so far, as the recorder makes it. Returns 0 or an errno value.
int snapshot(const capture::CaptureFile& file, const char* path, std::uint64_t now_ns);

// Runs work(0) to work(count - 1) at once, each in a thread of its own, and waits for all.
void in_threads(std::size_t count, const std::function<void(std::size_t)>& work);

// Runs `harm` in a child process; its return value, or -signal.
int in_child(const std::function<int()>& harm);

// A capture as a reader of format.h finds it: the bytes of a file and nothing else.
class FileView {
public:
    explicit FileView(const std::string& path);  // mapped: shows what a writer stores from now on
    ~FileView();
    FileView(const FileView&) = delete;
    FileView& operator=(const FileView&) = delete;

    bool is_whole() const;  // every record that is counted lies in an extent that is in the file
    const capture::Header& header() const { return *reinterpret_cast<const capture::Header*>(at_); }
    std::uint64_t bytes() const { return bytes_; }
    std::uint64_t count(capture::Table table) const { return header().table_count[static_cast<std::uint32_t>(table)]; }
    template <typename Record>
    const Record& record(capture::Table table, std::uint64_t id) const {
        const std::uint64_t per_extent = header().extent_bytes / sizeof(Record);
        const char* chunk = chunk_of(table, static_cast<std::uint32_t>(id / per_extent));
        return reinterpret_cast<const Record*>(chunk)[id % per_extent];
    }
    std::string text(std::uint32_t string) const;

    struct Figures {
        std::int64_t bytes, blocks;
        bool operator==(const Figures&) const = default;
    };
    Figures at_slice_peak(std::uint32_t account) const;
    Figures at_peak(std::uint32_t account) const;
    Figures peak() const;

private:
    const char* chunk_of(capture::Table table, std::uint32_t chunk) const;  // null where there is none

    const char* at_ = nullptr;
    std::uint64_t bytes_ = 0;
};

std::string read_whole(const std::string& path);

}  // namespace hiwater::tests
