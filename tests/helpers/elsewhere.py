"""Runs hiwater's command, or a program, with what another system lacks taken away: `elsewhere.py windows report x.hiw`,
`elsewhere.py macos program.py`.

What is taken away is what the library reference of Python says is not there (“Availability”). Modules of the standard
library and of others are loaded before: they know those systems by `sys.platform`, and hiwater must not need to.
"""

import builtins
import contextlib
import importlib
import importlib.abc
import io
import os
import runpy
import select
import shutil
import signal
import sys
import time

_LINUX_ALONE = (
    "O_PATH", "O_TMPFILE", "getresuid", "getresgid", "memfd_create", "pidfd_open", "posix_fallocate",
    "sched_getaffinity", "waitid", "eventfd", "sendfile", "sched_setaffinity", "prlimit",
)  # fmt: skip
_POSIX_ALONE = (
    "O_CLOEXEC", "O_NONBLOCK", "O_NOFOLLOW", "O_NOCTTY", "O_DIRECTORY", "O_SYNC", "pread", "preadv", "pwrite",
    "pwritev", "fork", "forkpty", "register_at_fork", "wait4", "wait3", "WNOHANG", "geteuid", "getuid", "getegid",
    "getgid", "getgroups", "uname", "sysconf", "sysconf_names", "fchmod", "fchown", "killpg", "setsid", "getpgid",
    "posix_spawn", "statvfs", "fstatvfs", "mkfifo", "nice", "getloadavg", "openpty", "ttyname", "ctermid", "tcgetpgrp",
)  # fmt: skip
_SIGNALS_OF_POSIX = (
    "SIGHUP",
    "SIGUSR1",
    "SIGUSR2",
    "SIGQUIT",
    "SIGKILL",
    "SIGSTOP",
    "SIGPIPE",
    "SIGXFSZ",
    "SIGALRM",
    "SIGCHLD",
    "SIGTSTP",
)
_NO_MODULES = {
    "macos": {"hiwater._core", "hiwater._standby"},
    "windows": {
        "hiwater._core",
        "hiwater._standby",
        "resource",
        "fcntl",
        "termios",
        "tty",
        "pty",
        "pwd",
        "grp",
        "syslog",
    },
}
LOADED_BEFORE = (
    "asyncio", "concurrent.futures", "multiprocessing.util", "platform", "subprocess", "tempfile", "uuid", "webbrowser",
    "numpy", "psutil", "rich.console", "rich.table",
)  # fmt: skip
_NOT_WINDOWS = ("st_blocks", "st_blksize", "st_rdev")


def _is_hiwater(depth: int = 2) -> bool:
    return str(sys._getframe(depth).f_globals.get("__name__", "")).startswith("hiwater")


class _Missing(importlib.abc.MetaPathFinder):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class _StatOfWindows:
    def __init__(self, real: os.stat_result) -> None:
        self._real = real

    def __getattr__(self, name: str) -> object:
        if name in _NOT_WINDOWS:
            raise AttributeError(name)
        return getattr(self._real, name)


def _without_proc(function, of_windows: bool = False):
    """The function, to which /proc and /sys are not there if hiwater asks."""

    def called(path, *arguments, **keywords):
        if isinstance(path, (str, bytes, os.PathLike)) and _is_hiwater():
            text = os.fsdecode(path)
            if text.startswith(("/proc", "/sys")):
                raise FileNotFoundError(2, "No such file or directory", text)
        found = function(path, *arguments, **keywords)
        return _StatOfWindows(found) if of_windows and _is_hiwater() else found

    return called


def _not_while_open(function):
    """The function, as Windows has it: a file that this process has open is neither moved, replaced nor removed."""

    def called(path, *others, **keywords):
        for number in _listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if _readlink(f"/proc/self/fd/{number}") in {_realpath(one) for one in (path, *others)}:
                    raise PermissionError(13, "The process cannot access the file because it is being used", path)
        return function(path, *others, **keywords)

    return called


_listdir, _readlink, _realpath = os.listdir, os.readlink, os.path.realpath


def _exists(path: str) -> bool:
    return not str(path).startswith(("/proc", "/sys")) and os.access(path, os.F_OK)


def take_away(system: str) -> None:
    for name in LOADED_BEFORE:
        importlib.import_module(name)
    is_windows = system == "windows"
    sys.modules["tempfile"]._O_TMPFILE_WORKS = False  # as it finds at its import
    for name in _LINUX_ALONE + (_POSIX_ALONE if is_windows else ()):
        if hasattr(os, name):
            delattr(os, name)
    for name in (
        ("pthread_kill", "CLOCK_MONOTONIC", "CLOCK_PROCESS_CPUTIME_ID", "clock_gettime", "clock_gettime_ns")
        if is_windows
        else ()
    ):
        if hasattr(time, name):
            delattr(time, name)
    for name in _SIGNALS_OF_POSIX if is_windows else ():
        delattr(signal, name)
    for name in _NO_MODULES[system] & set(sys.modules):
        del sys.modules[name]
    sys.meta_path.insert(0, _Missing(_NO_MODULES[system]))
    for name in ("open", "listdir", "readlink", "scandir"):
        setattr(os, name, _without_proc(getattr(os, name)))
    builtins.open = io.open = _without_proc(io.open)
    os.path.exists = _exists
    os.stat = _without_proc(os.stat, is_windows)
    if is_windows:
        # Found out as they were loaded; 3.13 does more where they are true.
        shutil._use_fd_functions = sys.modules["subprocess"]._USE_POSIX_SPAWN = False
        os.fstat = _without_proc(os.fstat, True)
        os.replace, os.rename, os.unlink = map(_not_while_open, (os.replace, os.rename, os.unlink))
        del select.poll
        select.select = None  # of sockets alone, of which hiwater has none


def main() -> None:
    system, *words = sys.argv[1:]
    take_away(system)
    if words[0].endswith(".py"):
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
        return
    sys.argv = ["hiwater", *words]
    from hiwater.cli import main as hiwater

    sys.exit(hiwater())


if __name__ == "__main__":
    main()
