#include "session/children.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "base/errno_kept.h"
#include "base/file_size_signal.h"
#include "base/pages.h"
#include "base/process.h"
#include "base/raw_calls.h"
#include "session/own_folder.h"
#include "session/sampler.h"

namespace hiwater {

namespace {

constexpr char kIndex[] = "index.jsonl";

long long number(std::uint64_t value) noexcept { return static_cast<long long>(value); }

// Copies text into a JSON string. What is not ASCII, and what does not fit, is left out: a program is recognised
// without it.
void quote(const char* text, char* out, std::size_t room) noexcept {
    std::size_t used = 0;
    for (; *text != '\0' && used + 3 < room; ++text) {
        if (*text == '"' || *text == '\\') out[used++] = '\\';
        if (*text >= ' ' && *text <= '~') out[used++] = *text;
    }
    out[used] = '\0';
}

// An option of the interpreter that keeps a child from recording itself, alone or among others: without site there is
// no start-up file, and an interpreter that ignores its environment obeys none of ours.
const char* reason_not_recorded(char* const* arguments) noexcept {
    constexpr const char* kFlags = "bBdEiIOPqsSuvx";
    for (int i = 1;
         arguments != nullptr && arguments[0] != nullptr && arguments[i] != nullptr && arguments[i][0] == '-'; ++i) {
        const char* letter = arguments[i] + 1;
        if (*letter == 'W' || *letter == 'X') {
            if (letter[1] == '\0' && arguments[i + 1] != nullptr) ++i;
            continue;
        }
        for (; *letter != '\0' && ::strchr(kFlags, *letter) != nullptr; ++letter)
            for (const char* reason : {"-S", "-I", "-E"})
                if (*letter == reason[1]) return reason;
        if (*letter != '\0') break;  // -c, -m, or the end of the options
    }
    return "";
}

}  // namespace

void Children::begin(const StartOptions& options, const char* path) {
    end();
    delete std::exchange(options_, nullptr);
    unmap_pages(std::exchange(refused_, nullptr), kPage);
    refused_pid_ = 0;
    is_child_ = !options.run_variable.empty() && !options.run_folder.empty();
    if (options.run_variable.empty()) return;
    parent_ = ::getppid();
    const std::string folder = is_child_ ? options.run_folder : path + std::string(".d");
    if (!folder_.set(folder.c_str()) || !set_variable(options.run_variable + folder)) return;
    options_ = new StartOptions(options);
    options_->run_folder = folder;
    refused_ = static_cast<Refused*>(map_shared_pages(kPage));
    refused_pid_ = refused_ == nullptr ? 0 : ::getpid();
}

bool Children::set_variable(const std::string& value) {
    return variable_.set(("HIWATER_RUN=by=" + std::to_string(::getpid()) + ";" + value).c_str());
}

const StartOptions* Children::begin_in_fork() {
    if (options_ == nullptr) return nullptr;
    uid_t owner;
    const int folder = open_folder(&owner);
    if (folder < 0) return nullptr;
    raw::close(folder);
    set_variable(options_->run_variable + folder_.text);
    is_child_ = was_forked_ = true;
    parent_ = ::getppid();
    const auto milliseconds = process::monotonic_ns() / 1'000'000;
    options_->path =
        std::string(folder_.text) + "/" + std::to_string(::getpid()) + "-" + std::to_string(milliseconds) + ".hiw";
    options_->facts["ppid"] = std::to_string(parent_);
    options_->facts["started_by"] = "fork";
    return options_;
}

int Children::open_folder(uid_t* owner) const noexcept {
    const int folder = open_own_folder(folder_.text, owner);
    if (folder >= 0 || errno != ENOENT || (::mkdir(folder_.text, 0700) != 0 && errno != EEXIST)) return folder;
    return open_own_folder(folder_.text, owner);
}

int Children::open_index() const noexcept {
    uid_t owner;
    const int folder = open_folder(&owner);
    if (folder < 0) return -1;
    constexpr int kHow = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK;
    const auto index = raw::open_in(folder, kIndex, kHow, 0600);
    const int error = errno;
    raw::close(folder);
    errno = error;
    struct stat about{};
    if (index < 0 || (raw::fstat(index, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == owner)) return index;
    raw::close(index);
    errno = EPERM;
    return -1;
}

void Children::append(int index, char* row, int length) noexcept {
    if (length > 0 && length < static_cast<int>(kRowBytes)) {
        ::memset(row + length, ' ', kRowBytes - static_cast<std::size_t>(length) - 1);
        row[kRowBytes - 1] = '\n';
        const FileSizeSignalHeld held;
        if (raw::write(index, row, kRowBytes) < 0) {
            // A full disk: the process is missing in the index, and nothing else is to be done here.
        }
    }
    raw::close(index);
}

void Children::note_started(pid_t child, pid_t parent, const char* program, char* const* arguments) const noexcept {
    const ErrnoKept kept;
    sampler::note_relatives();
    const int index = open_index();
    if (index < 0) return note_refused(errno);
    char row[kRowBytes], name[300];
    quote(program, name, sizeof name);
    append(index, row,
           ::snprintf(row, sizeof row,
                      R"({"event":"started","pid":%d,"ppid":%d,"at_unix_ns":%lld,"program":"%s","why":"%s"})", child,
                      parent, number(process::wall_ns()), name, reason_not_recorded(arguments)));
}

void Children::note_refused(int error) const noexcept {
    if (refused_ == nullptr || !are_recorded()) return;
    __atomic_store_n(&refused_->error, error, __ATOMIC_RELAXED);
    __atomic_fetch_add(&refused_->children, 1, __ATOMIC_RELEASE);  // who sees the number sees the reason
}

void Children::note_killed(pid_t child, int signal) const noexcept {
    const ErrnoKept kept;
    const int index = open_index();
    if (index < 0) return;
    char row[kRowBytes];
    append(index, row,
           ::snprintf(row, sizeof row, R"({"event":"killed","pid":%d,"ppid":%d,"at_unix_ns":%lld,"signal":%d})", child,
                      ::getpid(), number(process::wall_ns()), signal));
}

bool Children::is_row_enough(std::int64_t peak_bytes) const noexcept {
    const ErrnoKept kept;
    char path[sizeof folder_.text + sizeof kIndex];
    ::snprintf(path, sizeof path, "%s/%s", folder_.text, kIndex);
    struct stat about{};
    return is_small(peak_bytes) && ::lstat(path, &about) == 0 &&
           about.st_size >= kMostCaptures * static_cast<std::int64_t>(kRowBytes);
}

void Children::note_ended(const Ended& ended, const char* path) noexcept {
    if (ended.header.exit_code != -1 || !await_exit_code(ended, path)) append_ended(ended, path);
}

// The interpreter gives its exit code to exit() alone, after all its callbacks. Only glibc tells it further.
bool Children::await_exit_code(const Ended& ended, const char* path) noexcept {
#if defined(__GLIBC__)
    static const bool is_registered =
        ::on_exit([](int status, void*) { children.note_exit_code(status & 0xff); }, nullptr) == 0;
#else
    constexpr bool is_registered = false;
#endif
    if (!is_registered || !awaiting_path_.set(path)) return false;
    awaiting_ = ended;
    awaiting_pid_ = ::getpid();
    return true;
}

void Children::note_exit_code(int code) noexcept {
    if (awaiting_pid_ != ::getpid()) return;
    awaiting_pid_ = 0;
    awaiting_.header.exit_code = code;
    const int file = raw::open(awaiting_path_.text, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
    if (file >= 0) {
        const std::int32_t value = code;
        const FileSizeSignalHeld held;
        if (raw::pwrite(file, &value, sizeof value, offsetof(capture::Header, exit_code)) < 0) {
            // A full disk: the code is missing in the capture, and nothing else is to be done here.
        }
        raw::close(file);
    }
    append_ended(awaiting_, awaiting_path_.text);
}

void Children::append_ended(const Ended& ended, const char* path) const noexcept {
    const ErrnoKept kept;
    const int index = open_index();
    if (index < 0) return;
    const capture::Header& h = ended.header;
    const char* slash = ::strrchr(path, '/');
    const char* name = slash == nullptr ? path : slash + 1;
    char row[kRowBytes];
    append(
        index, row,
        ::snprintf(
            row, sizeof row,
            R"({"event":"ended","pid":%d,"start_ticks":%lld,"ppid":%d,"started_by":"%s","capture":"%s","exit_code":%d,)"
            R"("started_unix_ns":%lld,"duration_ns":%lld,"peak_bytes":%lld,"peak_blocks":%lld,"live_bytes":%lld,)"
            R"("total_bytes":%lld,"total_blocks":%lld,"resident_peak_bytes":%lld,"inherited_bytes":%lld})",
            ::getpid(), number(h.process_start_ticks), parent_, was_forked_ ? "fork" : "exec", name, h.exit_code,
            number(h.started_unix_ns), number(h.ended_ns), static_cast<long long>(ended.peak.bytes),
            static_cast<long long>(ended.peak.blocks), static_cast<long long>(h.live_bytes),
            static_cast<long long>(ended.total.bytes), static_cast<long long>(ended.total.blocks),
            static_cast<long long>(h.resident_peak_bytes), number(h.inherited_bytes)));
}

}  // namespace hiwater
