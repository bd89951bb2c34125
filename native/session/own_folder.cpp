#include "session/own_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/process.h"
#include "base/raw_calls.h"

namespace hiwater {

namespace {

// As whom this process makes files in a folder: the file system of another machine may give root's to somebody else
// (root_squash of NFS).
bool makes_files_as(int folder, uid_t owner) noexcept {
    char name[64];
    ::snprintf(name, sizeof name, ".hiwater-%d-%llx", ::getpid(),
               static_cast<unsigned long long>(process::monotonic_ns()));
    constexpr int kHow = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    const auto file = raw::open_in(folder, name, kHow, 0600);
    if (file < 0) return false;
    struct stat about{};
    const bool is_same = raw::fstat(file, &about) == 0 && about.st_uid == owner;
    raw::close(file);
    raw::unlink_in(folder, name);
    return is_same;
}

}  // namespace

int open_own_folder(const char* path, uid_t* owner) noexcept {
    const int folder = raw::open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0) return -1;
    struct stat about{};
    const bool is_ours = raw::fstat(folder, &about) == 0 && (about.st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
                         (about.st_uid == ::geteuid() || makes_files_as(folder, about.st_uid));
    *owner = about.st_uid;
    if (is_ours) return folder;
    raw::close(folder);
    errno = EPERM;
    return -1;
}

}  // namespace hiwater
