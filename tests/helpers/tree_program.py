"""A tree of processes that hold memory, wait, and end in many ways, as its argument says: FILE SPEC, as JSON. Each
change of what a process holds is logged before it and after it; and after each that adds, and before each that takes
away, the process measures the sum of PSS over the tree."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

MIB = 1 << 20


Line = tuple[int, str, list[int]]
OUTSIDE = 0  # who measures, and is no process of the tree


class Log:
    """Lines in the order in which they are written: a process, what it does or what becomes of it, and bytes."""

    def __init__(self, path: str) -> None:
        self.path, self.fd = path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, what: str, pid: int, *numbers: int) -> None:
        os.write(self.fd, " ".join(map(str, (pid, what, *numbers))).encode() + b"\n")

    def lines(self) -> list[Line]:
        whole, _, _ = _read(self.path).rpartition("\n")
        words = map(str.split, whole.splitlines())
        return [(int(pid), what, [*map(int, numbers)]) for pid, what, *numbers in words]

    def running(self) -> list[int]:
        last = {pid: what for pid, what, _ in self.lines()}
        return [pid for pid, what in last.items() if what != "end" and pid != OUTSIDE]

    def measure(self, who: int) -> None:
        """Note the sum of PSS over the processes of the log and their descendants: at least and at most, because
        they are read one after the other. Where a fork or an end came in between, it is not known. Those that are
        gone have ended."""
        self.note("read", who)
        known = self.running()
        processes = tree(known)
        first, second = ({pid: _rollup(pid) for pid in processes} for _ in range(2))
        if tree(known) == processes:
            # A process that shares its parent's memory until it executes a program has the same text as its parent.
            sums = [sum(map(_pss, {*rollups.values()})) for rollups in (first, second)]
            self.note("pss", who, min(sums), max(sums))
        for pid in known:
            if not first.get(pid):
                self.note("end", pid)


class Node:
    def __init__(self, log: Log, held: list[Any]) -> None:
        self.log, self.held = log, held
        self.children: list[int] = []
        self.inherited = len(held)

    def run(self, spec: dict[str, Any]) -> None:
        log, me = self.log, os.getpid()
        log.note("begin", me)
        for what, value in spec["steps"]:
            if what == "sleep":
                time.sleep(value / 1000)
            elif what == "hold":  # one block, touched
                self.hold(value * MIB, lambda size: bytearray(b"\1") * size)
            elif what == "objects":  # many small ones
                self.hold(value * MIB, lambda size: [bytes(991) for _ in range(size // 1024)])
            elif what == "let_go":
                if len(self.held) > self.inherited:
                    log.measure(me)
                    size = self.size()
                    log.note("before", me, -size)
                    del self.held[-1]
                    log.note("after", me, -size)
            elif what == "rewrite" and self.held and isinstance(self.held[0], bytearray):
                log.note("copies", me, len(self.held[0]))  # the pages that others share
                self.held[0][::4096] = b"\2" * len(range(0, len(self.held[0]), 4096))
                log.note("copied", me, len(self.held[0]))
                log.measure(me)
            elif what in ("fork", "spawn"):
                self.begin(what, value)
            elif what == "kill" and self.children:
                child = self.children.pop()
                log.note("leave", child)
                os.kill(child, value)
                os.waitpid(child, 0)
                log.note("end", child)
            elif what in ("wait", "tell"):  # one process waits until another tells it
                self.meet(value, os.O_RDONLY if what == "wait" else os.O_WRONLY)
            elif what == "join":
                self.join()
            elif what == "exec":
                log.note("leave", me)  # what it holds goes with the execution
                log.note("starts", me)
                os.execv(sys.executable, [sys.executable, __file__, log.path, json.dumps(value)])
        log.measure(me)
        self.join()

    def hold(self, size: int, make: Callable[[int], Any]) -> None:
        self.log.note("before", os.getpid(), size)
        self.held.append(make(size))
        self.log.note("after", os.getpid(), size)
        time.sleep(0.02)
        self.log.measure(os.getpid())
        time.sleep(0.02)

    def meet(self, number: int, how: int) -> None:
        path = f"{self.log.path}.{number}"
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path)
        os.close(os.open(path, how))

    def size(self) -> int:
        last = self.held[-1]
        return len(last) if isinstance(last, bytearray) else len(last) * 1024

    def begin(self, how: str, spec: dict[str, Any]) -> None:
        if how == "spawn":
            self.log.note("lends", os.getpid())  # its memory, until the child executes the program
            child = subprocess.Popen([sys.executable, __file__, self.log.path, json.dumps(spec)]).pid
            self.log.note("starts", child)
            self.log.note("lent", os.getpid())
        else:
            child = os.fork()
            if child == 0:
                try:
                    Node(self.log, self.held).run(spec)
                finally:
                    self.log.note("leave", os.getpid())
                    os._exit(0)
        self.children.append(child)

    def join(self) -> None:
        while self.children:
            child = self.children.pop(0)
            os.waitpid(child, 0)
            self.log.note("end", child)


def tree(roots: Iterable[int]) -> list[int]:
    """These processes and their descendants."""
    found = dict.fromkeys(roots)
    waiting = [*found]
    for pid in waiting:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                children = map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
                waiting += [child for child in children if child not in found]
                found.update(dict.fromkeys(waiting))
        except OSError:
            continue
    return waiting


def _rollup(pid: int) -> str:
    try:
        return _read(f"/proc/{pid}/smaps_rollup")
    except OSError:
        return ""


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _pss(rollup: str) -> int:
    return next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    node = Node(Log(sys.argv[1]), [])  # holds what it has until it has noted that it leaves
    node.run(json.loads(sys.argv[2]))
    node.log.note("leave", os.getpid())
