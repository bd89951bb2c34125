"""Rounds of readings of all processes of a run, and what each process has at its samples and at these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hiwater.capture.model import Capture
from hiwater.capture.paths import Ints
from hiwater.capture.tracks import Seen, Track, span

_APART_NS, _NS_OF_PAGE, _PAGE_BYTES = 10_000_000, 100, 4096
"""Readings of one round follow each other sooner, each as long after another one as the kernel takes for its pages.
Rounds begin farther apart; some of their readings are missing where the machine is busy."""


class Rounds:
    """`at_ns` is when the last process of each round was read. `copied` has times, and how many more bytes of those
    that they shared all processes have copied then, at most, each since `copied_since`."""

    def __init__(self, readers: Sequence[Capture]) -> None:
        readings, copied = [np.zeros((4, 0), np.int64)], [np.zeros((2, 0), np.int64)]
        for reader in readers:
            own = reader.process.pid
            for pid, one in reader.relatives.items():
                if pid == 0:
                    copied.append(np.stack([one.at_unix_ns, one.shared_excess_bytes]))
                else:
                    length = len(one.at_unix_ns)
                    of_pid = np.full(length, pid), np.full(length, pid == own)
                    readings.append(np.stack([one.at_unix_ns, *of_pid, one.resident_bytes]))
        at, pids, is_own, resident = np.concatenate(readings, axis=1)
        order = np.argsort(at, kind="stable")
        at, pids, is_own, resident = at[order], pids[order], is_own[order], resident[order]
        is_apart = np.diff(at, prepend=at[:1]) >= _APART_NS + resident // _PAGE_BYTES * _NS_OF_PAGE
        begins, read = list[int](), set[int]()
        for place, (pid, begins_one) in enumerate(zip(pids.tolist(), (is_apart | (is_own == 1)).tolist(), strict=True)):
            if begins_one or pid in read or not place:
                begins.append(place)
                read = set()
            read.add(pid)
        self.at_ns: Ints = at[np.append(np.array(begins[1:], np.int64), len(at)) - 1] if len(at) else at
        times, most = np.concatenate(copied, axis=1)
        order = np.argsort(times, kind="stable")
        times, most = times[order], most[order]
        after = np.searchsorted(self.at_ns, times, side="right")
        before = np.append([0], most[:-1]) * (np.diff(after, prepend=-1) == 0)
        self.copied: tuple[Ints, Ints] = (times, np.maximum(0, most - before))
        rounds = np.append([0], self.at_ns)[after]
        self.copied_since: Ints = np.maximum(rounds, np.append(times[:1], times[:-1])) + 1

    def telling(self, members: Sequence[Sharer]) -> tuple[Ints, Ints]:
        """The numbers of those rounds in which all that there were then were read; while no process begins or ends,
        and there is none of these, of those in which each has been read in that time; and of all, where there is
        none at all. And how much is in doubt there of what others count of pages of files and of shared memory, since
        the last reading of each process counts: of a page that moves after the first of these, at most half is in
        readings that come later; of a process that was never read, all may be shared."""
        changes = np.sort(np.array([0, *(at for one in members for at in (one.at_ns[0], one.end_ns))], np.int64))
        period = np.searchsorted(changes, self.at_ns, side="right")
        is_complete, is_known = np.ones((2, len(self.at_ns)), np.bool_)
        oldest, moved = self.at_ns.copy(), np.zeros(len(self.at_ns), np.int64)
        for one in members:
            alive = np.arange(*np.searchsorted(self.at_ns, [one.at_ns[0], one.end_ns]))
            read_ns = np.append(one.read_ns, [-1])[one.last_reading(alive, self.at_ns[alive])]
            is_complete[alive] &= read_ns == self.at_ns[alive]
            is_known[alive] &= read_ns >= changes[period[alive] - 1]
            oldest[alive] = np.minimum(oldest[alive], read_ns)
        for one in members:
            way = sums_until(one.at_ns, np.abs(np.diff(one.mapped.bytes, prepend=0)))
            moved += way(self.at_ns) - way(oldest)
        is_kept = is_complete | is_known & ~np.isin(period, period[is_complete])
        return (np.flatnonzero(is_kept), moved[is_kept] // 2) if is_kept.any() else (np.arange(len(moved)), moved)

    def excess(self, lost: Sequence[tuple[Sharer, tuple[Ints, Ints]]]) -> tuple[Ints, Ints, Ints]:
        """The times of those rounds in which all were read; the sum of what others count of the anonymous memory of
        each; and by how much that is too high, at most. `lost` has the processes that were forked or have forked, each
        with times, and how much less it shares then than before, at most.

        On a busy machine some are not read: it is known if they were read, by themselves or others, since the last fork
        or end. By what others share less since that reading, they may share less, too. Of two processes, each shares
        as much as the other one, so the last that a process reads itself, as it ends, tells as much as a round.
        """
        at_ns = np.unique(np.concatenate([self.at_ns, *(one.own_ns[-1:] for one, _ in lost)]))
        total, present, highest, of_highest, found_before, most_fallen, most_lost, latest = np.zeros(
            (8, len(at_ns)), np.int64
        )
        is_known = np.ones(len(at_ns), np.bool_)
        changes = np.sort(np.array([0, *(at for one, _ in lost for at in (one.at_ns[0], one.end_ns))], np.int64))
        last_change = changes[np.searchsorted(changes, at_ns, side="right") - 1]
        own_lost = [(one, sums_until(*of)) for one, of in lost]
        falls = [  # up to its first reading, what it has lost itself
            (one.falls[0], np.append(own(one.falls[0][:1]), one.falls[1][1:])) for one, own in own_lost
        ]
        fallen = sums_until(*np.concatenate([self.copied, *falls], axis=1))
        for one, own in own_lost:
            alive = slice(*np.searchsorted(at_ns, [one.at_ns[0], one.end_ns]))
            at, excess, _, read_ns = one.readings
            rounds_ns = at_ns[alive]
            place = np.searchsorted(at, rounds_ns, side="right")
            found, at, read_ns = (np.append([first], of)[place] for first, of in ((0, excess), (-1, at), (-1, read_ns)))
            since = fallen(rounds_ns) - fallen(at)
            most_since = np.minimum(found, since)
            is_known[alive] &= read_ns >= last_change[alive]
            total[alive] += found
            present[alive] += 1
            of_highest[alive] = np.where(found > highest[alive], most_since, of_highest[alive])
            highest[alive] = np.maximum(highest[alive], found)
            found_before[alive] += most_since
            most_fallen[alive] = np.maximum(most_fallen[alive], since)
            most_lost[alive] += np.minimum(found, own(rounds_ns) - own(at))
            latest[alive] = np.maximum(latest[alive], at)
        most_lost += np.minimum(found_before, most_fallen)
        is_pair = (present == 2) & (latest == at_ns)
        total -= np.where(is_pair, np.minimum(of_highest, 2 * highest - total), 0)
        most_lost[is_pair] = 0
        is_known &= is_pair | np.isin(at_ns, self.at_ns)
        return at_ns[is_known], total[is_known], most_lost[is_known]


def sums_until(times: Ints, values: Ints) -> Callable[[Ints], Ints]:
    """The sum of the values up to any times."""
    order = np.argsort(times, kind="stable")
    times, sums = times[order], np.append([0], np.cumsum(values[order]))
    return lambda until: sums[np.searchsorted(times, until, side="right")]


class Sharer:
    """What a process has over time: from each wall clock time of `at_ns` on, with nothing before the first and from
    `end_ns` on; and when it was read: the numbers of the `rounds`, what it had, and what others count of that."""

    first_shared = 0
    """What it shared when a fork began it."""

    def __init__(self, capture: Capture, seen: Seen, rounds: Rounds) -> None:
        self.forks_ns = list[int]()  # when it forked
        start, end = span(capture)
        timeline = capture.timeline
        resident, mapped = timeline.resident_bytes + timeline.overhead_bytes, timeline.mapped_bytes
        at, first = np.unique(np.concatenate([timeline.at_ns, seen.at_ns]), return_index=True)
        resident, mapped = (
            np.concatenate(pair)[first] for pair in ((resident, seen.resident_bytes), (mapped, seen.mapped_bytes))
        )
        if not len(at):  # of a forked one it is known what it began with
            at, resident, mapped = (np.array([count], np.int64) for count in (0, capture.resident.start_bytes, 0))
        self.at_ns: Ints = start + at
        self.end_ns = max([end, *self.at_ns[-1:].tolist()]) + 1  # what it had at its end counts
        self.anonymous = Track(self.at_ns, np.maximum(0, resident - mapped), self.end_ns, None)
        self.mapped = Track(self.at_ns, mapped, self.end_ns, None)
        # Of several readings in a round, the last one. Who is not of this family may have read it, too.
        numbers = np.minimum(np.searchsorted(rounds.at_ns, start + seen.at_ns), len(rounds.at_ns) - 1)
        is_last = (np.diff(numbers, append=-1) != 0) & (numbers >= 0)
        self.rounds: Ints = numbers[is_last]
        self.read_ns: Ints = rounds.at_ns[self.rounds]
        self.anonymous_read: Ints = np.maximum(0, seen.resident_bytes - seen.mapped_bytes)[is_last]
        self.anonymous_excess: Ints = seen.excess_bytes[is_last]
        self.shared_read: Ints = seen.shared_bytes[is_last]
        self.mapped_read: Ints = seen.mapped_bytes[is_last]
        self.mapped_excess: Ints = seen.mapped_excess_bytes[is_last]
        own_ns, own_excess, own_private = capture.shared_excess
        self.own_ns: Ints = start + own_ns
        self.readings: Ints = self._readings(own_excess, own_private, (start + seen.at_ns)[is_last])
        """Of all, by others or by itself, ascending: the times, those of rounds where they are of one, what others
        count of its anonymous memory, how much of that it surely shared, and when it was read."""
        fallen = np.maximum(0, -np.diff(self.readings[1], prepend=0))
        self.falls: Ints = np.stack([self.readings[0], fallen])
        """The same times, and by how much the first of these figures has fallen since the reading before."""

    def last_reading(self, rounds: Ints, at_ns: Ints) -> Ints:
        """Which reading was its last at each of these rounds, with their times; -1 before the first, and where it was
        not there."""
        is_there = (at_ns >= self.at_ns[0]) & (at_ns < self.end_ns)
        return np.where(is_there, np.searchsorted(self.rounds, rounds, side="right") - 1, -1)

    @property
    def shares_by_fork(self) -> bool:
        """Whether a fork began it, or it has forked."""
        return bool(self.first_shared or self.forks_ns)

    def _readings(self, own_excess: Ints, own_private: Ints, seen_ns: Ints) -> Ints:
        shared = np.append(self.shared_read - self.mapped_read, self.anonymous.at(self.own_ns) - own_private)
        at, excess = np.append(self.read_ns, self.own_ns), np.append(self.anonymous_excess, own_excess)
        order = np.argsort(at, kind="stable")
        found: Ints = np.stack([at, excess, np.maximum(excess, shared), np.append(seen_ns, self.own_ns)])[:, order]
        return found


def lowest_since(values: Ints, number: Ints) -> Ints:
    """The lowest so far of those with the same number; the numbers ascend."""
    above = (number - number[0]) * (int(values.max(initial=0)) + 1)
    lowest: Ints = np.minimum.accumulate(values - above) + above
    return lowest
