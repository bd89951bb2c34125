"""The sum of processes whose pages are known one by one, against what is made of their samples and of rounds of
readings."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from capture_builder import Recording
from example_captures import with_mapped_pages
from hiwater.capture.at_once import Machine
from hiwater.capture.limits import SeenFromOutside

MILLISECOND, MIB = 1_000_000, 1 << 20
BEGAN = 10**18


@dataclass
class Process:
    """Of its pages, each of a MiB, those that it got last are the first that it gives back."""

    recording: Recording
    began_ns: int
    anonymous: list[int]
    mapped: list[int] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)


class World:
    """The first process reads all. It tells when they copy pages. On a busy machine it misses some, or all."""

    def __init__(self, seed: int, *, missed: float = 0) -> None:
        self.choice, self.missed = random.Random(seed), missed
        self.now_ns, self.copied, self.pages = BEGAN, 0, 0
        self.processes, self.ended, self.told = list[Process](), list[Process](), list[list[int]]()
        self.truth: list[tuple[int, int]] = []
        self.start(self.new(10))

    def new(self, count: int) -> list[int]:
        self.pages += count
        return list(range(self.pages - count, self.pages))

    def start(self, pages: list[int], forked_by: Process | None = None) -> None:
        pid = len(self.processes) + len(self.ended) + 1
        one = Recording()
        one.header.update(pid=pid, process_start_ticks=pid, started_unix_ns=self.now_ns)
        if forked_by is not None:
            one.fact("started_by", "fork")
            one.fact("ppid", str(forked_by.recording.header["pid"]))
            one.header.update(resident_start_bytes=len(pages) * MIB)
        self.processes.append(Process(one, self.now_ns, pages))

    def sample(self, one: Process) -> None:
        one.recording.now_ns = self.now_ns - one.began_ns
        one.recording.sample((len(one.anonymous) + len(one.mapped)) * MIB, len(one.mapped) * MIB)

    def read(self) -> None:
        holders = Counter(page for one in self.processes for page in one.anonymous + one.mapped)
        for one in self.processes:
            excess, mapped_excess = (
                sum(MIB * (holders[page] - 1) // holders[page] for page in pages)
                for pages in (one.anonymous, one.mapped)
            )
            shared = sum(holders[page] > 1 for page in one.anonymous + one.mapped)
            held, mapped = len(one.anonymous) + len(one.mapped), len(one.mapped)
            if self.missed and self.choice.random() < self.missed:
                continue
            one.rows.append([self.now_ns, held * MIB, excess, shared * MIB, mapped * MIB, mapped_excess])
        if any(one.rows and one.rows[-1][0] == self.now_ns for one in self.processes):
            self.copied = 0

    def step(self) -> None:
        one, what = self.choice.choice(self.processes), self.choice.random()
        if what < 0.25:
            one.anonymous += self.new(self.choice.randint(1, 30))
        elif what < 0.40:
            del one.anonymous[-self.choice.randint(1, 20) :]
        elif what < 0.52 and len(self.processes) < 6:
            self.now_ns += MILLISECOND
            self.start(list(one.anonymous), one)
            self.sample(self.processes[-1])
        elif what < 0.60 and one is not self.processes[0]:
            self.sample(one)
            one.recording.end()
            self.processes.remove(one)
            self.ended.append(one)
        elif what < 0.70:
            self.copy(one)
        elif what < 0.78:
            other = self.choice.choice(self.processes)
            free = [page for page in other.mapped if page not in one.mapped]
            one.mapped += self.choice.choice([free, self.new(self.choice.randint(1, 20))])
        elif what < 0.84:
            del one.mapped[-self.choice.randint(1, 20) :]
        for each in self.processes:
            self.sample(each)
        self.now_ns += MILLISECOND
        if self.choice.random() < 0.15:
            self.read()
        self.truth.append(
            (self.now_ns, len({page for each in self.processes for page in each.anonymous + each.mapped}))
        )
        self.now_ns += 20 * MILLISECOND

    def copy(self, one: Process) -> None:
        others = {page for each in self.processes if each is not one for page in each.anonymous}
        shared = [place for place, page in enumerate(one.anonymous) if page in others]
        for place in self.choice.sample(shared, len(shared) // 2):
            one.anonymous[place] = self.new(1)[0]
            self.copied += MIB
        self.told.append([self.now_ns, 0, self.copied, 0, 0, 0])

    def machine(self) -> Machine:
        for one in self.processes:
            one.recording.now_ns = self.now_ns - one.began_ns
            one.recording.end()
        everyone = sorted([*self.processes, *self.ended], key=lambda one: one.began_ns)
        captures = [with_mapped_pages(one.recording) for one in everyone]
        rows = {one.recording.header["pid"]: one.rows for one in everyone if one.rows} | (
            {0: self.told} if self.told else {}
        )
        captures[0].relatives = {pid: SeenFromOutside(*np.array(one, np.int64).T) for pid, one in rows.items()}
        return Machine(captures)


@pytest.mark.parametrize("missed", [0, 0.4, 0.9, 1])
@pytest.mark.parametrize("seed", range(60))
def test_the_pages_of_processes_are_within_the_error(seed: int, missed: float) -> None:
    world = World(seed, missed=missed)
    for _ in range(world.choice.choice([10, 30, 60])):
        world.step()
    found = world.machine()
    tracks = [*(track for _, track in found.resident_tracks), *found.counted_twice]
    for at, pages in world.truth:
        held = error = 0
        for track in tracks:
            if track.at_ns[0] <= at < track.lasting().end_ns:
                place = int(np.searchsorted(track.at_ns, at, side="right")) - 1
                held += int(track.bytes[place])
                error += 0 if track.is_process or track.unmeasured is None else int(track.unmeasured[place])
        assert abs(held - pages * MIB) <= error + 2 * MIB, (at - BEGAN) // MILLISECOND
