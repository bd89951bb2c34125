#include "session/last_words.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/own_file.h"
#include "base/process.h"
#include "base/raw_calls.h"

namespace hiwater {

namespace {

using capture::LimitKind;

constexpr const char* kBegin = "hiwater: ";
constexpr const char* kProcess = "\nprocess ";
constexpr const char* kProcessFormat = "\nprocess %d with %lld MiB resident";
constexpr std::int64_t kMiB = 1 << 20;

// As format_size(bytes, 1) of _os/sizes.py.
struct Size {
    char text[32];
    explicit Size(std::int64_t bytes) noexcept {
        constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB"};
        std::size_t unit = 0;
        double value = static_cast<double>(bytes) / 1024;
        for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
        if (bytes < 1024) {
            ::snprintf(text, sizeof text, "%lld B", static_cast<long long>(bytes));
        } else {
            ::snprintf(text, sizeof text, "%.1f %s", value, units[unit]);
        }
    }
};

[[gnu::format(printf, 2, 3)]] void append(LastWords::Text* out, const char* format, ...) noexcept {
    va_list arguments;
    va_start(arguments, format);
    const std::size_t room = sizeof out->text - 1 - out->size;  // one byte stays for the end of the line
    const int length = ::vsnprintf(out->text + out->size, room, format, arguments);
    va_end(arguments);
    if (length > 0) out->size += std::min<std::size_t>(static_cast<std::size_t>(length), room - 1);
}

// A file's name may contain anything, and the words are shown on terminals.
void append_name(LastWords::Text* out, std::string_view name) noexcept {
    constexpr std::size_t kLongest = 1000;
    name = name.substr(0, kLongest);
    const std::size_t from = out->size;
    append(out, "%.*s", static_cast<int>(name.size()), name.data());
    std::replace_if(
        out->text + from, out->text + out->size, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; },
        '?');
}

void append_place(LastWords::Text* out, const TopLineView& top, const std::string& folder) noexcept {
    std::string_view file = top.file;
    if (folder.size() > 1 && file.starts_with(folder)) file.remove_prefix(folder.size());
    if (top.line != 0) {
        append_name(out, file);
        append(out, ":%u in ", top.line);
    }
    append_name(out, top.function);
}

// As short as can be; src/hiwater/_os/headline.py has the sentence.
void append_most(LastWords::Text* out, const TopLineView& top, const std::string& folder) noexcept {
    if (!top.is_known) return append(out, "; most: nothing that was recorded");
    const bool is_untouched = top.untouched_bytes > top.bytes && top.group <= LineGroup::waited;
    const Size bytes(is_untouched ? top.untouched_bytes : top.bytes);
    if (top.group == LineGroup::imports) {
        append(out, "; most: imports, %s; %s of it at ", Size(top.imports_bytes).text, bytes.text);
    } else if (top.group == LineGroup::other && top.other_bytes != 0) {
        append(out, "; most: code that none of your lines called, %s; %s of it at ", Size(top.other_bytes).text,
               bytes.text);
    } else {
        append(out, top.group == LineGroup::waited ? "; most: %s waited for at " : "; most: %s at ", bytes.text);
    }
    append_place(out, top, folder);
    if (is_untouched) append(out, ", allocated and never touched");
}

const char* name_of(LimitKind kind) noexcept {
    return kind == LimitKind::cgroup ? "cgroup" : kind == LimitKind::machine ? "machine" : "address space";
}

// Whether the words in `text` are those of another process that lives and has more.
bool are_of_larger(const char* text, const char* mine) noexcept {
    const auto read = [](const char* words, int* pid, long long* resident) {
        const char* const line = ::strstr(words, kProcess);
        return line != nullptr && ::sscanf(line, kProcessFormat, pid, resident) == 2;
    };
    int pid = 0, own_pid = 0;
    long long resident = 0, own = 0;
    return read(text, &pid, &resident) && read(mine, &own_pid, &own) && pid != own_pid && resident > own &&
           process::read_stat(pid).start_ticks != 0;
}

class Descriptor : Uncopied {
public:
    explicit Descriptor(int fd) noexcept : fd_(fd) {}
    ~Descriptor() {
        if (fd_ >= 0) raw::close(fd_);
    }
    operator int() const noexcept { return fd_; }  // NOLINT(google-explicit-constructor): it is one

private:
    int fd_;
};

}  // namespace

void LastWords::begin(const std::string& path, mode_t mode) {
    *this = {};
    path_ = path;
    mode_ = mode;
    pid_ = ::getpid();
    char folder[kPage];
    if (::getcwd(folder, sizeof folder) != nullptr) folder_ = std::string(folder) + "/";
    failure_.reserve(kPage + 200);  // what a failure says takes no memory then
}

bool LastWords::become_due(const NearestLimit& nearest) noexcept {
    constexpr std::int64_t kSteps = 64;
    const bool is_near = nearest.share() >= Limits::kNear ||
                         (nearest.limit_bytes != 0 && nearest.stalled_percent >= Limits::kStalledPercent);
    if (!is_near || (told_bytes_ != 0 && nearest.used_bytes <= told_bytes_ + nearest.limit_bytes / kSteps))
        return false;
    told_bytes_ = nearest.used_bytes;
    return true;
}

void LastWords::compose(const NearestLimit& nearest, const TopLineView& top, std::int64_t resident_bytes,
                        const std::string& capture, Text* out) const noexcept {
    out->size = 0;
    append(out, "%speak %s of %s (%s)", kBegin, Size(nearest.used_bytes).text, Size(nearest.limit_bytes).text,
           name_of(nearest.kind));
    if (nearest.stalled_percent >= Limits::kStalledPercent)
        append(out, ", stalled %d %% of the time", nearest.stalled_percent);
    append_most(out, top, folder_);
    append(out, kProcessFormat, pid_, static_cast<long long>(resident_bytes / kMiB));
    // Not gmtime_r(), which reads the time zone's file.
    using namespace std::chrono;
    const sys_seconds wall{seconds(process::wall_ns() / 1'000'000'000)};
    const year_month_day date(floor<days>(wall));
    const hh_mm_ss time(wall - floor<days>(wall));
    append(out, ", %d-%02u-%02u %02d:%02d:%02d UTC: hiwater report ", static_cast<int>(date.year()),
           static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
           static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()),
           static_cast<int>(time.seconds().count()));
    append_name(out, capture);
}

bool LastWords::fail(const char* reason) noexcept {
    failure_ = "the last words were not written to ";
    failure_.append(path_, 0, kPage);
    failure_ += ": ";
    failure_ += reason;
    return false;
}

bool LastWords::write(Text& words) noexcept {
    const Descriptor fd(open_high(path_.c_str(), O_RDWR | O_CREAT | O_NONBLOCK | O_NOFOLLOW, mode_));
    struct stat file{};
    if (fd < 0 || raw::fstat(fd, &file) != 0) return fail(::strerror(errno));
    if (!S_ISREG(file.st_mode)) return fail("it is not a file");
    char before[kPage];
    const ssize_t length = raw::read(fd, before, sizeof before - 1);
    if (length < 0) return fail(::strerror(errno));
    before[length] = '\0';
    if (length != 0 && !std::string_view(before).starts_with(kBegin)) return fail("it has other contents");
    if (are_of_larger(before, words.text)) return true;
    // Never shorter than before: a reader would find the rest of the former words behind these.
    const auto least = std::min<std::size_t>(static_cast<std::size_t>(length), sizeof words.text);
    while (words.size + 1 < least) words.text[words.size++] = ' ';
    words.text[words.size++] = '\n';
    const ssize_t written = raw::lseek(fd, 0, SEEK_SET) == 0 ? raw::write(fd, words.text, words.size) : -1;
    if (written < 0) return fail(::strerror(errno));
    return static_cast<std::size_t>(written) == words.size || fail("the disk is full");
}

}  // namespace hiwater
