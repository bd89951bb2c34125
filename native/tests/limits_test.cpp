#include "session/limits.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "support.h"

namespace hiwater::tests {

namespace {

constexpr std::int64_t kMib = 1 << 20;

// The files of a memory group, as the kernel has them in cgroup v2.
struct Group {
    std::filesystem::path folder = std::filesystem::temp_directory_path() / ("limits-" + std::to_string(::getpid()));
    Group() { std::filesystem::create_directory(folder); }
    ~Group() { std::filesystem::remove_all(folder); }
    std::string path(const char* name) const { return (folder / name).string(); }
    void write(const char* name, const std::string& text) const { std::ofstream(path(name)) << text; }
    bool is_full(std::int64_t used, std::int64_t cache, const std::string& limit) const {
        write("memory.current", std::to_string(used) + "\n");
        write("memory.max", limit + "\n");
        write("memory.stat", "anon 1\ninactive_file " + std::to_string(cache) + "\nactive_file 2\n");
        Limits limits;
        limits.begin(path("memory.current"), {path("memory.max")});
        CHECK(!limits.is_group_full());  // nothing has been read yet
        limits.read(1, 0);
        return limits.is_group_full();
    }
};

}  // namespace

TEST_CASE("a memory group is full where hardly more than page cache could make room") {
    const Group group;
    const std::string limit = std::to_string(1024 * kMib);
    CHECK(!group.is_full(1000 * kMib, 0, limit));
    CHECK(group.is_full(1010 * kMib, 0, limit));
    CHECK(group.is_full(1024 * kMib, 5 * kMib, limit));
    CHECK(!group.is_full(1024 * kMib, 24 * kMib, limit));
    CHECK(!group.is_full(1024 * kMib, 0, "max"));
    CHECK(group.is_full(96 * kMib, 0, std::to_string(100 * kMib)));
    CHECK(!group.is_full(95 * kMib, 0, std::to_string(100 * kMib)));
}

TEST_CASE("what is in no memory group is in no full one") {
    Limits limits;
    limits.begin("", {});
    limits.read(1, 0);
    CHECK(!limits.is_group_full());
}

}  // namespace hiwater::tests
