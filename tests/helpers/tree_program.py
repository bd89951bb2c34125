"""A tree of processes that hold memory, wait, and end in many ways, as its argument says. Each change of what a process holds is logged with
the time before it and after it: FILE SPEC, as JSON."""

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any

MIB = 1 << 20


class Log:
    def __init__(self, path: str) -> None:
        self.path, self.fd = path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, what: bytes, pid: int, number: int) -> None:
        os.write(self.fd, b"%d %d %s %d\n" % (time.time_ns(), pid, what, number))

    def measure(self) -> None:
        """Note the sum of PSS over the tree, whose root is the first process that wrote to the log."""
        with open(self.path) as file:
            root = int(file.readline().split()[1])
        self.note(b"pss", os.getpid(), sum_of_pss(root))


class Node:
    def __init__(self, log: Log, held: list[Any]) -> None:
        self.log, self.held = log, held
        self.children: list[int] = []
        self.inherited = len(held)

    def run(self, spec: dict[str, Any]) -> None:
        log, me = self.log, os.getpid()
        log.note(b"begin", me, 0)
        for what, value in spec["steps"]:
            if what == "sleep":
                time.sleep(value / 1000)
            elif what == "hold":  # one block, touched
                log.note(b"before", me, value * MIB)
                self.held.append(bytearray(b"\1") * (value * MIB))
                log.note(b"after", me, value * MIB)
                time.sleep(0.02)
                log.measure()
                time.sleep(0.02)
            elif what == "objects":  # many small ones
                log.note(b"before", me, value * MIB)
                self.held.append([bytes(991) for _ in range(value * MIB // 1024)])
                log.note(b"after", me, value * MIB)
                time.sleep(0.02)
                log.measure()
                time.sleep(0.02)
            elif what == "let_go":
                if len(self.held) > self.inherited:
                    log.measure()
                    size = self.size()
                    log.note(b"before", me, -size)
                    del self.held[-1]
                    log.note(b"after", me, -size)
            elif (
                what == "rewrite" and self.held and isinstance(self.held[0], bytearray)
            ):  # copies pages that others share
                self.held[0][::4096] = b"\2" * len(range(0, len(self.held[0]), 4096))
            elif what in ("fork", "spawn"):
                self.begin(what, value)
            elif what == "kill" and self.children:
                child = self.children.pop()
                os.kill(child, value)
                os.waitpid(child, 0)
                log.note(b"end", child, 0)
            elif what in ("wait", "tell"):  # one process waits until another tells it
                self.meet(value, os.O_RDONLY if what == "wait" else os.O_WRONLY)
            elif what == "join":
                self.join()
            elif what == "exec":
                log.note(b"leave", me, 0)  # what it holds goes with the execution
                os.execv(sys.executable, [sys.executable, __file__, log.path, json.dumps(value)])
        log.measure()
        self.join()

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
            child = subprocess.Popen([sys.executable, __file__, self.log.path, json.dumps(spec)]).pid
        else:
            child = os.fork()
            if child == 0:
                try:
                    Node(self.log, self.held).run(spec)
                finally:
                    self.log.note(b"leave", os.getpid(), 0)
                    os._exit(0)
        self.children.append(child)

    def join(self) -> None:
        while self.children:
            child = self.children.pop(0)
            os.waitpid(child, 0)
            self.log.note(b"end", child, 0)


def sum_of_pss(root: int) -> int:
    """The sum over the process and its descendants. They are read one after the other: where a fork or an end comes in between, it counts for nothing.
    A process that shares its parent's memory until it executes a program has the same text as its parent."""
    processes = _tree(root)
    first, second = ({_rollup(pid) for pid in processes} for _ in range(2))
    return min(sum(map(_pss, first)), sum(map(_pss, second))) if _tree(root) == processes else 0


def _tree(root: int) -> list[int]:
    found = [root]
    for pid in found:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
        except OSError:
            continue
    return found


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
    Node(Log(sys.argv[1]), []).run(json.loads(sys.argv[2]))
    Log(sys.argv[1]).note(b"leave", os.getpid(), 0)
