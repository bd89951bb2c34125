#include "capture/capture_file.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "base/own_pages.h"
#include "support.h"

namespace hiwater::tests {

using capture::CaptureFile;
using capture::FileTable;
using capture::kExtentBytes;
using capture::kFirstExtentOffset;
using capture::NoRoom;
using capture::State;
using capture::Table;

namespace {

capture::NodeRecord node(std::uint64_t i) {
    return {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(2 * i), static_cast<std::uint32_t>(3 * i), 0};
}

bool holds_nodes(const FileView& view, std::uint64_t count) {
    if (view.count(Table::nodes) != count || !view.is_whole()) return false;
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto& record = view.record<capture::NodeRecord>(Table::nodes, i);
        if (record.parent != node(i).parent || record.code != node(i).code || record.line != node(i).line) return false;
    }
    return true;
}

// A capture with nodes.
struct Nodes {
    const Folder folder;
    const std::string path = folder.file("a.hiw");
    CaptureFile file;
    FileTable<capture::NodeRecord> table;

    explicit Nodes(std::uint64_t count = 0) {
        REQUIRE(make(file, path) == 0);
        table.attach(file, Table::nodes);
        grow(count);
    }
    void grow(std::uint64_t count) {
        while (table.size() < count) table.append(node(table.size()));
    }
};

// The descriptor a capture holds: the one that leads to its file.
int descriptor_of(const std::string& path) {
    struct stat wanted{}, about{};
    if (::stat(path.c_str(), &wanted) != 0) return -1;
    for (int fd = 0; fd < 1024; ++fd)
        if (::fstat(fd, &about) == 0 && about.st_dev == wanted.st_dev && about.st_ino == wanted.st_ino) return fd;
    return -1;
}

// Fills a capture until there is no room; what is left must still be read. In a child process: 0, or the step that
// failed.
int fill_up(const std::string& path) {
    CaptureFile file;
    if (make(file, path) != 0) return 1;
    FileTable<capture::NodeRecord> nodes;
    nodes.attach(file, Table::nodes);
    std::uint64_t count = 0;
    try {
        for (; count < 100'000'000; ++count) nodes.append(node(count));
        return 2;
    } catch (const NoRoom& room) {
        if (room.error != EFBIG && room.error != ENOSPC) return 3;
    }
    if (count < 1000 || nodes.size() != count) return 4;
    if (!holds_nodes(FileView(path), count)) return 5;
    try {
        nodes.append(node(count));
        return 6;  // still no room
    } catch (const NoRoom&) {
    }
    file.finish(State::failed);
    if (!holds_nodes(FileView(path), count)) return 7;
    return FileView(path).header().state == static_cast<std::uint32_t>(State::failed) ? 0 : 8;
}

}  // namespace

TEST_SUITE_BEGIN("capture file");

TEST_CASE("records of several tables, over many extents, are what a reader finds") {
    for_seeds(4, [](Trace& trace) {
        Nodes nodes;
        FileTable<capture::SliceRecord> slices;
        slices.attach(nodes.file, Table::slices);
        std::vector<std::uint64_t> starts;
        for (std::uint64_t step = 0; step < 60'000; ++step) {
            if (trace.one_in(5)) {
                starts.push_back(trace.word());
                slices.append({starts.back(), 0, 0, 0, 0, 0, 0, 0});
            } else {
                nodes.grow(nodes.table.size() + 1);
            }
        }
        const FileView view(nodes.path);
        CHECK(view.header().extents_used >= 8);
        CHECK(holds_nodes(view, nodes.table.size()));
        for (std::uint64_t i = 0; i < starts.size(); ++i)
            if (view.record<capture::SliceRecord>(Table::slices, i).start_ns != starts[i]) FAIL("slice ", i);
    });
}

TEST_CASE("pages that were given back are not resident, and their records are still there") {
    const Folder folder;
    capture::CaptureFile file;
    REQUIRE(make(file, folder.file("a.hiw")) == 0);
    capture::FileTable<capture::PressureRecord> pressure;
    capture::FileTable<capture::NodeRecord> nodes;
    pressure.attach(file, capture::Table::pressure);
    nodes.attach(file, capture::Table::nodes);
    constexpr std::uint64_t kPressure = 5 * decltype(pressure)::kPerExtent, kNodes = 5 * decltype(nodes)::kPerExtent;
    const auto resident = [] { return static_cast<std::uint64_t>(OwnPagesCount().read(false).capture_bytes); };
    const std::uint64_t before = resident();
    for (std::uint64_t i = 0; i < kNodes; ++i) nodes.append({static_cast<std::uint32_t>(i), 0, 0, 0});
    const std::uint64_t with_nodes = resident();
    CHECK(with_nodes >= before + 5 * capture::kExtentBytes);
    for (std::uint64_t i = 0; i < kPressure; ++i) pressure.append({i, 0, 0, 0, 0, 0, 0, 0, 0});
    CHECK(resident() <= with_nodes + 2 * capture::kExtentBytes);
    for (std::uint64_t i = 0; i < kPressure; ++i) REQUIRE(pressure[i].at_ns == i);
    file.give_pages_back();
    const std::uint64_t header = before + 8 * kPage;  // with its directory
    CHECK(resident() <= header);
    nodes[1].line = 7;
    CHECK(resident() <= header + kPage);
    for (std::uint64_t i = 0; i < kNodes; ++i) nodes.append({static_cast<std::uint32_t>(kNodes + i), 0, 0, 0});
    CHECK(resident() >= before + 5 * capture::kExtentBytes);
    const auto is_used = [](capture::Table table, std::uint32_t chunk, std::uint64_t page) {
        return table == capture::Table::nodes && (chunk == 9 || page == 0);
    };
    for (std::uint64_t i = 0; i < 2 * kNodes; ++i) REQUIRE(nodes[i].parent == i);
    file.give_unused_pages_back(is_used);
    CHECK(resident() >= before + 9 * kPage + capture::kExtentBytes);
    CHECK(resident() <= header + 9 * kPage + capture::kExtentBytes);
    file.give_pages_back();
    for (std::uint64_t i = 0; i < 2 * kNodes; ++i) REQUIRE(nodes[i].parent == i);
    CHECK(nodes[1].line == 7);
    file.finish(capture::State::ended);
}

TEST_CASE("a copy is the used part, byte for byte; a finished file has no more") {
    Nodes nodes(300'000);
    CaptureFile& file = nodes.file;
    const std::string &path = nodes.path, copy = nodes.folder.file("copy.hiw");
    const std::uint64_t used = kFirstExtentOffset + file.header().extents_used * kExtentBytes;
    REQUIRE(snapshot(file, copy.c_str(), 7) == 0);
    CHECK(FileView(copy).header().snapshot_ns == 7);
    REQUIRE(snapshot(file, copy.c_str(), 0) == 0);
    CHECK(std::filesystem::file_size(copy) == used);
    CHECK(std::filesystem::file_size(path) == file.mapped_bytes());
    CHECK(file.mapped_bytes() > used);
    CHECK(read_whole(copy) == read_whole(path).substr(0, used));
    CHECK(holds_nodes(FileView(copy), 300'000));
    file.finish(State::ended);
    CHECK_FALSE(file.is_open());
    CHECK(std::filesystem::file_size(path) == used);
    CHECK(holds_nodes(FileView(path), 300'000));
    CHECK(FileView(path).header().state == static_cast<std::uint32_t>(State::ended));
}

TEST_CASE("a capture that grows while its copy is made is whole in the copy; a copy that is given up leaves nothing") {
    Nodes nodes;
    CaptureFile& file = nodes.file;
    const std::string copy = nodes.folder.file("copy.hiw");
    {
        capture::CaptureCopy given_up, kept;
        REQUIRE(given_up.begin(copy.c_str(), file.mode(), file.used_bytes()) == 0);
        REQUIRE(kept.begin(copy.c_str(), file.mode(), file.used_bytes()) == 0);
        nodes.grow(300'000);
        REQUIRE(kept.fill(file, 7) == 0);
        CHECK_FALSE(std::filesystem::exists(copy));
        REQUIRE(kept.end() == 0);
    }
    CHECK(std::filesystem::file_size(copy) == file.used_bytes());
    CHECK(holds_nodes(FileView(copy), 300'000));
    CHECK(std::distance(std::filesystem::directory_iterator(nodes.folder.path()), {}) == 2);
}

TEST_CASE("a copy that cannot be written leaves nothing and says why") {
    const Folder folder;
    CaptureFile file;
    REQUIRE(make(file, folder.file("a.hiw")) == 0);
    CHECK(snapshot(file, folder.file("no/such/folder.hiw").c_str(), 1) == ENOENT);
}

TEST_CASE("a device is no place for a capture, and is still there afterwards") {
    // Through links, so that a fault here takes away a link.
    const Folder folder;
    const std::string full = folder.file("full"), null = folder.file("null");
    REQUIRE(::symlink("/dev/full", full.c_str()) == 0);
    REQUIRE(::symlink("/dev/null", null.c_str()) == 0);
    CaptureFile nowhere, file;
    CHECK(make(nowhere, null) != 0);
    CHECK_FALSE(nowhere.is_open());
    REQUIRE(make(file, folder.file("a.hiw")) == 0);
    CHECK(snapshot(file, full.c_str(), 1) == ELOOP);
    CHECK(snapshot(file, "/dev/full", 1) == EEXIST);
    CHECK(std::filesystem::is_symlink(full));
    CHECK(std::filesystem::is_symlink(null));
}

TEST_CASE("a capture cannot be made where there is no folder, and none is left open") {
    const Folder folder;
    CaptureFile file;
    CHECK(make(file, folder.file("no/such/folder.hiw")) == ENOENT);
    CHECK_FALSE(file.is_open());
    CHECK(make(file, folder.file("a.hiw")) == 0);  // and the same object can be used again
    CHECK(file.is_open());
}

TEST_CASE("the descriptor is out of the program's way, and goes with an exec") {
    const Folder folder;
    CaptureFile file;
    REQUIRE(make(file, folder.file("a.hiw")) == 0);
    const int fd = descriptor_of(folder.file("a.hiw"));
    CHECK(fd >=
          40);  // the lowest that is chosen: where this process began with the kernel's smallest table, of 64 numbers
    CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("a capture whose descriptor was closed under it, or given to another file, goes on") {
    for (const bool replaced : {false, true}) {
        CAPTURE(replaced);
        Nodes nodes;
        const std::string other = nodes.folder.file("other");
        const int fd = descriptor_of(nodes.path);
        REQUIRE(fd >= 0);
        const int theirs = ::open(other.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        REQUIRE((replaced ? ::dup2(theirs, fd) == fd : ::close(fd) == 0));
        nodes.grow(200'000);
        nodes.file.finish(State::ended);
        CHECK(holds_nodes(FileView(nodes.path), 200'000));
        CHECK(std::filesystem::file_size(other) == 0);
        CHECK((::fcntl(fd, F_GETFD) >= 0) == replaced);  // the program's file was not closed
        if (replaced) ::close(fd);
        ::close(theirs);
    }
}

TEST_CASE("letting go of a capture does not close a file that the program put in our descriptor's place") {
    const Folder folder;
    CaptureFile file;
    REQUIRE(make(file, folder.file("a.hiw")) == 0);
    const int fd = descriptor_of(folder.file("a.hiw"));
    const int theirs = ::open(folder.file("other").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(::dup2(theirs, fd) == fd);
    file.abandon();
    CHECK(::fcntl(fd, F_GETFD) >= 0);
    ::close(fd);
    ::close(theirs);
}

TEST_CASE("a capture whose file is gone from its folder and descriptor cannot grow, and what it has is written again") {
    Nodes nodes(1000);
    const std::string& path = nodes.path;
    ::close(descriptor_of(path));
    ::unlink(path.c_str());
    std::string again = path;
    SUBCASE("deleted") {}
    SUBCASE("another file has its name") {
        ::close(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        again = nodes.folder.file("a.") + std::to_string(::getpid()) + ".hiw";
    }
    CHECK_THROWS_AS(nodes.grow(1'000'000), NoRoom);
    const CaptureFile::Ending ending = nodes.file.finish(State::failed);
    CHECK_FALSE(nodes.file.is_open());
    CHECK(ending.error == 0);
    CHECK(ending.fate == CaptureFile::Fate::written_again);
    CHECK(ending.path.text == again);
    CHECK(holds_nodes(FileView(again), nodes.table.size()));
    if (again != path) CHECK(std::filesystem::file_size(path) == 0);
}

TEST_CASE("a capture that was moved is whole where it is, and its end says where") {
    const Folder folder;
    CaptureFile file;
    REQUIRE(make(file, folder.file("a.hiw")) == 0);
    REQUIRE(::rename(folder.file("a.hiw").c_str(), folder.file("b.hiw").c_str()) == 0);
    const CaptureFile::Ending ending = file.finish(State::ended);
    CHECK(ending.fate == CaptureFile::Fate::moved);
    CHECK(ending.path.text == folder.file("b.hiw"));
    CHECK_FALSE(std::filesystem::exists(folder.file("a.hiw")));
    CHECK(FileView(folder.file("b.hiw")).header().state == static_cast<std::uint32_t>(State::ended));
}

TEST_CASE("where files may grow only so far, what was recorded can be read") {
    const Folder folder;
    const int step = in_child([&] {
        ::signal(SIGXFSZ, SIG_DFL);
        const rlimit most{5 << 20, 5 << 20};
        if (::setrlimit(RLIMIT_FSIZE, &most) != 0) return 100;
        return fill_up(folder.file("a.hiw"));
    });
    CHECK(step == 0);
}

TEST_CASE("on a full disk, what was recorded can be read") {
    const Folder folder;
    const int step = in_child([&] {
        // A mount that only this process sees, and that goes with it.
        if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", "none", MS_REC | MS_PRIVATE, nullptr) != 0) return 101;
        if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=3m") != 0) return 101;
        return fill_up(folder.file("a.hiw"));
    });
    if (step == 101) {
        MESSAGE("no file system can be mounted here: not tested");
        return;
    }
    CHECK(step == 0);
}

TEST_CASE("on a disk too small for a header there is an error and no file") {
    const Folder folder;
    const int step = in_child([&] {
        ::signal(SIGXFSZ, SIG_DFL);
        const rlimit most{1 << 16, 1 << 16};
        if (::setrlimit(RLIMIT_FSIZE, &most) != 0) return 100;
        CaptureFile file;
        if (make(file, folder.file("a.hiw")) != EFBIG) return 1;
        if (file.is_open()) return 2;
        return std::filesystem::exists(folder.file("a.hiw")) ? 3 : 0;
    });
    CHECK(step == 0);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
