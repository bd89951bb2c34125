// A file gets its name without harm to what has it.
#include "capture/placement.h"

#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <set>

#include "base/process.h"
#include "support.h"

namespace hiwater::tests {

using capture::CaptureFile;
using capture::Header;
using capture::PathBuffer;
using capture::State;

namespace {

void sign(Header& h) {
    h.pid = static_cast<std::uint32_t>(::getpid());
    h.process_start_ticks = process::read_stat().start_ticks;
    process::read_boot_id(h.boot_id);
    h.started_unix_ns = process::wall_ns();
    h.state = static_cast<std::uint32_t>(State::recording);
    ::memcpy(h.magic, capture::kMagic, sizeof h.magic);
}

// Records until it is killed.
class OtherRecorder {
public:
    explicit OtherRecorder(const std::string& path, bool ends = false) {
        int from[2];
        REQUIRE(::pipe(from) == 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            CaptureFile file;
            int error = file.create(path.c_str());
            if (error == 0) sign(file.header());
            if (error == 0) error = file.publish();
            PathBuffer made = {};
            made.set(error == 0 ? file.path() : "");
            if (ends) file.finish(State::ended);
            if (::write(from[1], &made, sizeof made) < 0) ::_exit(1);
            for (;;) ::pause();
        }
        ::close(from[1]);
        answer_ = from[0];
    }
    ~OtherRecorder() {
        ::kill(pid_, SIGKILL);
        ::close(answer_);
        ::waitpid(pid_, nullptr, 0);
    }
    std::string path() {
        PathBuffer made;
        if (::read(answer_, &made, sizeof made) != static_cast<ssize_t>(sizeof made)) return "no answer";
        return made.text;
    }
    pid_t pid() const { return pid_; }

private:
    pid_t pid_ = -1;
    int answer_ = -1;
};

}  // namespace

TEST_SUITE_BEGIN("placement");

TEST_CASE("recorders that come at once to one path all keep a capture of their own") {
    for (const bool over_an_old_one : {false, true}) {
        const Folder folder;
        const std::string path = folder.file("a.hiw");
        CaptureFile old;
        if (over_an_old_one) {
            REQUIRE(make(old, path) == 0);
            old.finish(State::ended);
        }
        for (int round = 0; round < 10; ++round) {
            std::set<std::string> paths;
            {
                std::vector<std::unique_ptr<OtherRecorder>> recorders;
                for (int i = 0; i < 8; ++i) recorders.push_back(std::make_unique<OtherRecorder>(path));
                for (auto& recorder : recorders) {
                    const std::string at = recorder->path();
                    paths.insert(at);
                    CHECK(FileView(at).header().pid == static_cast<std::uint32_t>(recorder->pid()));
                }
                CHECK(paths.size() == 8);
                CHECK(paths.count(path) == 1);
            }
            for (const std::string& at : paths)
                if (at != path) ::unlink(at.c_str());
        }
        for (const auto& entry : std::filesystem::directory_iterator(folder.path())) CHECK(entry.path() == path);
    }
}

TEST_CASE("what a living process recorded stays, what a dead one did is replaced, and who has it open keeps it") {
    const Folder folder;
    const std::string path = folder.file("a.hiw");
    CaptureFile file;
    {
        OtherRecorder living(path, true);  // ended, and its process may want it
        REQUIRE(living.path() == path);
        REQUIRE(make(file, path) == 0);
        CHECK(file.path() == folder.file("a.") + std::to_string(::getpid()) + ".hiw");
        file.finish(State::ended);
    }
    const FileView reader(path);
    REQUIRE(file.create(path.c_str()) == 0);
    sign(file.header());
    REQUIRE(file.publish() == 0);
    CHECK(file.path() == path);
    CHECK(reader.header().state == static_cast<std::uint32_t>(State::ended));
    CHECK(snapshot(file, path.c_str(), 1) == EBUSY);  // not over itself
    CHECK(file.header().state == static_cast<std::uint32_t>(State::recording));
}

TEST_CASE("links and what is no file stay as they are") {
    const Folder folder;
    const std::string link = folder.file("link.hiw"), to = folder.file("to.hiw");
    CaptureFile file;
    REQUIRE(make(file, to) == 0);
    file.finish(State::ended);
    REQUIRE(::symlink(to.c_str(), link.c_str()) == 0);
    CHECK(make(file, link) == ELOOP);
    CHECK(std::filesystem::is_symlink(link));
    REQUIRE(::mkdir(folder.file("folder.hiw").c_str(), 0700) == 0);
    CHECK(make(file, folder.file("folder.hiw")) == EEXIST);
    REQUIRE(::mkfifo(folder.file("pipe.hiw").c_str(), 0600) == 0);
    CHECK(make(file, folder.file("pipe.hiw")) == EEXIST);
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 4);
}

TEST_CASE("permissions are exactly those that were asked for") {
    const Folder folder;
    const mode_t before = ::umask(0277);
    for (const mode_t mode : {0600u, 0644u, 0400u}) {
        CaptureFile file;
        REQUIRE(file.create(folder.file("a.hiw").c_str(), mode) == 0);
        REQUIRE(file.publish() == 0);
        struct stat about{};
        REQUIRE(::stat(folder.file("a.hiw").c_str(), &about) == 0);
        CHECK((about.st_mode & 07777) == mode);
        REQUIRE(snapshot(file, folder.file("copy.hiw").c_str(), 1) == 0);
        REQUIRE(::stat(folder.file("copy.hiw").c_str(), &about) == 0);
        CHECK((about.st_mode & 07777) == mode);
    }
    ::umask(before);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
