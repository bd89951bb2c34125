#include "interpose/exec_hooks.h"

#include <alloca.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/errno_kept.h"
#include "base/raw_calls.h"
#include "session/children.h"
#include "session/recorder.h"
#include "session/sampler.h"

namespace hiwater::interpose {

namespace {

using Text = const char*;
using Texts = char* const*;

// --- which programs are interpreters

std::string_view base_name(std::string_view path) noexcept { return path.substr(path.rfind('/') + 1); }

// Of a file's first line, "#!/usr/bin/env -S python3 -I".
bool is_script_of_python(Text path) noexcept {
    const int file = raw::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) return false;
    char head[256];
    const ssize_t n = raw::pread(file, head, sizeof head, 0);
    raw::close(file);
    const std::string_view line(head, n > 0 ? static_cast<std::size_t>(n) : 0);
    return line.starts_with("#!") && line.substr(0, line.find('\n')).find("python") != line.npos;
}

// Such a process is expected to record itself. May run in the child of a vfork, in its parent's memory: no memory is
// taken, no lock, and the stack is used sparingly. Python's own functions look for a name in PATH themselves: scripts
// that others find there are not recognised.
bool is_interpreter(Text path) noexcept {
    const ErrnoKept kept;
    const std::string_view name = base_name(path);
    if (name.starts_with("python") || name.starts_with("pypy"))
        return ::strchr(path, '/') == nullptr || ::access(path, X_OK) == 0;
    return ::strchr(path, '/') != nullptr && is_script_of_python(path);
}

// --- their environment

bool is_ours(Text entry) noexcept {
    const std::size_t name = std::string_view(children.variable()).find('=') + 1;
    return ::strncmp(entry, children.variable(), name) == 0;
}

constexpr std::size_t kMostEntries = 16 * 1024;  // they are copied onto the stack

std::size_t entries_in(Texts environment) noexcept {
    std::size_t count = 0;
    while (environment != nullptr && environment[count] != nullptr) ++count;
    return count;
}

// Calls call(environment) with the entry in it.
template <typename Call>
[[gnu::noinline]] int with_entry(Texts environment, std::size_t count, const Call& call) noexcept {
    auto* const copy = static_cast<char**>(alloca((count + 2) * sizeof(char*)));
    char** end = std::copy_if(environment, environment + count, copy, [](Text entry) { return !is_ours(entry); });
    *end++ = const_cast<char*>(children.variable());
    *end = nullptr;
    return call(static_cast<Texts>(copy));
}

// `env` alone shows its environment; with arguments it starts a program in it.
bool only_shows_environment(Text path, Texts arguments) noexcept {
    return base_name(path) == "env" && (arguments == nullptr || arguments[0] == nullptr || arguments[1] == nullptr);
}

// The process that multiprocessing starts to clean up after a program, and a command of hiwater.
bool is_no_part_of_program(Texts arguments) noexcept {
    constexpr std::string_view kTracker = "from multiprocessing.resource_tracker import main", kOurs = "hiwater";
    for (std::size_t i = 1; arguments != nullptr && arguments[0] != nullptr && arguments[i] != nullptr; ++i) {
        const std::string_view word = arguments[i];
        if (word.starts_with(kTracker) || (word == kOurs && std::string_view(arguments[i - 1]) == "-m")) return true;
    }
    return false;
}

// Whatever is executed has the entry: it may start an interpreter in turn.
bool is_told(Text path, Texts arguments) noexcept {
    return children.are_recorded() && !only_shows_environment(path, arguments) && !is_no_part_of_program(arguments);
}

template <typename Call>
int with_environment(bool told, Texts environment, const Call& call) noexcept {
    const std::size_t count = entries_in(environment);
    return told && count <= kMostEntries ? with_entry(environment, count, call) : call(environment);
}

// --- exec

// An exec that succeeds never comes back: the capture must be closed before it. In the child of a vfork, which shares
// our memory, nothing is touched (note_exit compares the process id).
template <typename Call>
int around_exec(const Call& call) noexcept {
    const bool marked = recording() && recorder().note_exit({capture::EndedBy::exec});
    const int result = call();
    const ErrnoKept kept;
    if (marked) recorder().withdraw_exit();
    return result;
}

// What the program leaves, as at the end of any recording. Not for a file that is not there: a search in PATH tries
// many.
void take_last_snapshot(Text path) noexcept {
    const ErrnoKept kept;
    if (!recording() || !recorder().is_of_this_process() || Recorder::is_inside()) return;
    if (::strchr(path, '/') == nullptr || ::access(path, X_OK) == 0) sampler::take_snapshot_before_exec();
}

template <typename Call>
int exec(Text path, Texts arguments, Texts environment, const Call& call) noexcept {
    const bool told = is_told(path, arguments);
    if (told && is_interpreter(path)) children.note_started(::getpid(), ::getppid(), path, arguments);
    take_last_snapshot(path);
    return around_exec([&] { return with_environment(told, environment, call); });
}

int hook_execve(Text path, Texts arguments, Texts environment) {
    return exec(path, arguments, environment,
                [&](Texts entries) { return real<hook_execve>(path, arguments, entries); });
}

int hook_execv(Text path, Texts arguments) { return hook_execve(path, arguments, environ); }

int hook_execvpe(Text name, Texts arguments, Texts environment) {
    return exec(name, arguments, environment,
                [&](Texts entries) { return real<hook_execvpe>(name, arguments, entries); });
}

int hook_execvp(Text name, Texts arguments) { return hook_execvpe(name, arguments, environ); }

int hook_fexecve(int file, Texts arguments, Texts environment) {
    char path[32];
    ::snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return exec(path, arguments, environment,
                [&](Texts entries) { return real<hook_fexecve>(file, arguments, entries); });
}

template <bool kSearches>
int hook_spawn(pid_t* child, Text path, const posix_spawn_file_actions_t* actions, const posix_spawnattr_t* attributes,
               Texts arguments, Texts environment) {
    const bool told = is_told(path, arguments);
    const int error = with_environment(told, environment, [&](Texts entries) {
        return real<hook_spawn<kSearches>>(child, path, actions, attributes, arguments, entries);
    });
    if (error == 0 && told && child != nullptr && is_interpreter(path))
        children.note_started(*child, ::getpid(), path, arguments);
    return error;
}

// --- commands of the shell

std::string exported(std::string_view entry, Text command) {
    const std::size_t value = entry.find('=') + 1;
    std::string out = "export " + std::string(entry.substr(0, value)) + '\'';
    for (const char letter : entry.substr(value)) out += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
    return out + "'; " + command;
}

// The shell has the environment of this process, which stays as it is: the command itself adds the entry.
template <typename Call>
auto with_command(Text command, const Call& call) {
    if (command == nullptr || !children.are_recorded()) return call(command);
    const std::string words = [&] {
        const BusyGuard busy;
        return exported(children.variable(), command);
    }();
    return call(words.c_str());
}

int hook_system(Text command) {
    return with_command(command, [](Text words) { return real<hook_system>(words); });
}

FILE* hook_popen(Text command, Text mode) {
    return with_command(command, [&](Text words) { return real<hook_popen>(words, mode); });
}

// --- the end of children

pid_t noted(pid_t child, const int* status) noexcept {
    if (child > 0 && WIFSIGNALED(*status) && children.are_recorded()) children.note_killed(child, WTERMSIG(*status));
    return child;
}

// Calls wait(status), with a place for the status where the caller wants none.
template <typename Wait>
pid_t around_wait(int* status, const Wait& wait) {
    int none = 0;
    int* const place = status == nullptr ? &none : status;
    return noted(wait(place), place);
}

pid_t hook_wait(int* status) {
    return around_wait(status, [](int* place) { return real<hook_wait>(place); });
}

pid_t hook_waitpid(pid_t which, int* status, int options) {
    return around_wait(status, [&](int* place) { return real<hook_waitpid>(which, place, options); });
}

pid_t hook_wait3(int* status, int options, rusage* usage) {
    return around_wait(status, [&](int* place) { return real<hook_wait3>(place, options, usage); });
}

pid_t hook_wait4(pid_t which, int* status, int options, rusage* usage) {
    return around_wait(status, [&](int* place) { return real<hook_wait4>(which, place, options, usage); });
}

int hook_waitid(idtype_t kind, id_t which, siginfo_t* result, int options) {
    const int error = real<hook_waitid>(kind, which, result, options);
    const bool was_killed = error == 0 && result != nullptr && (options & WNOWAIT) == 0 && result->si_pid != 0 &&
                            (result->si_code == CLD_KILLED || result->si_code == CLD_DUMPED);
    if (was_killed && children.are_recorded()) children.note_killed(result->si_pid, result->si_status);
    return error;
}

}  // namespace

void add_exec_hooks(std::vector<Hook>* hooks) {
    constexpr auto of = Hook::Of::process;
    hooks->insert(hooks->end(), {
                                    hook_of<hook_execv>("execv", of),
                                    hook_of<hook_execve>("execve", of),
                                    hook_of<hook_execvp>("execvp", of),
                                    hook_of<hook_execvpe>("execvpe", of),
                                    hook_of<hook_fexecve>("fexecve", of),
                                    hook_of<hook_spawn<false>>("posix_spawn", of),
                                    hook_of<hook_spawn<true>>("posix_spawnp", of),
                                    hook_of<hook_system>("system", of),
                                    hook_of<hook_popen>("popen", of),
                                    hook_of<hook_wait>("wait", of),
                                    hook_of<hook_waitpid>("waitpid", of),
                                    hook_of<hook_wait3>("wait3", of),
                                    hook_of<hook_wait4>("wait4", of),
                                    hook_of<hook_waitid>("waitid", of),
                                });
}

}  // namespace hiwater::interpose
