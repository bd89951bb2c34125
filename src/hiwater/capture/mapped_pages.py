"""Pages of files and of shared memory that several processes have: by how much the sum of resident memory is too high
because of them, over time.

Of each page that a process has more or fewer of than before, others may have it, too, or not. So what is counted twice
is as much as in the round before and in the next one, give or take what has moved since and will move until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hiwater.capture.paths import Ints, sums_over_time
from hiwater.capture.shared_rounds import Rounds, Sharer, lowest_since
from hiwater.capture.tracks import Track, sum_of_steps

_LARGEST = 8
"""Of so many processes it is asked which one has most: each costs as much as all samples do."""
_NEAR = 8
"""Of so many rounds before a time, and after it, it is learned how much of what moves is counted twice."""
_FEW, _TELLING_BYTES = 4, 1 << 20
_FAR = 1 << 62


def counted_twice(members: Sequence[Sharer], rounds: Rounds) -> Track:
    """In the hard bounds each page that moves may be shared, or not. Where these proved too wide for the rounds near a
    time, each foretold from those before it and after it, they are narrowed as far as that allows."""
    kept, doubt = rounds.telling(members)
    rounds_ns = rounds.at_ns[kept]
    excess, then, unread = np.zeros((3, len(kept)), np.int64)
    columns = []
    begin_ns = min(int(one.at_ns[0]) for one in members)
    for one in members:
        place = one.last_reading(kept, rounds_ns)
        never = np.where(place < 0, one.mapped.at(rounds_ns), 0)
        read = np.append(one.mapped_read, [0])[place] + never
        excess += np.append(one.mapped_excess, [0])[place]
        then += read
        unread += never
        columns.append(_moved(one, rounds_ns, read, begin_ns))
    # Who was never read shares as large a part as the others.
    excess += (excess * (unread / np.maximum(1, then - unread))).astype(np.int64)
    times, total, *moved = sums_over_time(
        [(at, *(np.diff(column, prepend=0) for column in moved)) for at, *moved in columns]
    )
    places = np.minimum(np.searchsorted(times, rounds_ns), len(times) - 1)
    way = np.cumsum(np.abs(np.diff(total, prepend=total[:1])))
    path = _Path(excess, then, way[places], _shares(then, excess))
    number = np.searchsorted(rounds_ns, times, side="right")
    # What others than these processes have, too, is counted by nobody twice; it is in the excess.
    highest = np.maximum(0, total - _largest(members, times) + int((excess + doubt).min()))
    least, most = _bounds(excess, doubt, number - 1, number, moved)
    most = np.clip(most, 0, highest)
    least = np.clip(least, 0, most)
    found = np.clip(path.at(total, way, number - 1, number), least, most)

    inner = np.arange(1, len(excess) - 1)
    just_before = [column[places[inner] - 1] for column in moved[:2]]
    of_inner = _bounds(
        excess, doubt, inner - 1, inner + 1, [*just_before, *(column[places[inner]] for column in moved[2:])]
    )
    foretold = np.clip(path.at(then[inner], path.way[inner], inner - 1, inner + 1), *of_inner)
    error = np.maximum(most - found, found - least)
    error = (error * _part_needed(np.abs(foretold - excess[inner]), of_inner[1] - of_inner[0])[number]).astype(np.int64)
    least, most = np.maximum(least, found - error), np.minimum(most, found + error)
    return Track.of_counted_twice(times, found, least, most, max(one.end_ns for one in members))


def unread(members: Sequence[Sharer]) -> Track:
    """The same of processes that nobody read together: others have all of these pages, or none of them."""
    times, total = sum_of_steps([one.mapped.steps for one in members])
    return Track.of_counted_twice(times, total // 2, np.zeros_like(total), total, max(one.end_ns for one in members))


def _bounds(excess: Ints, doubt: Ints, before: Ints, after: Ints, moved: Sequence[Ints]) -> tuple[Ints, Ints]:
    """What is counted twice, at least and at most, at times between two rounds, `before` and `after`; beyond the first
    or the last one these are none. A round tells `excess`, give or take the `doubt`."""
    given_since, new_since, given_until, new_until = moved
    has_before, has_after = before >= 0, after < len(excess)
    then, later = np.maximum(0, before), np.minimum(after, len(excess) - 1)
    lowest, highest = excess - doubt, excess + doubt
    least = np.maximum(
        np.where(has_before, lowest[then] - given_since, 0), np.where(has_after, lowest[later] - given_until, 0)
    )
    most = np.minimum(
        np.where(has_before, highest[then] + new_since, _FAR), np.where(has_after, highest[later] + new_until, _FAR)
    )
    return least, np.maximum(least, most)


def _part_needed(errors: Ints, widths: Ints) -> NDArray[np.float64]:
    """For each time before a round, or behind the last one: the largest part of half the width of the bounds that was
    needed at the rounds near it. 1 where few of these tell."""
    tells = widths >= _TELLING_BYTES
    parts = np.where(tells, np.minimum(1, errors * 3 / np.maximum(1, widths)), 0)
    most, count = np.zeros(len(errors) + 3), np.zeros(len(errors) + 3)
    for number in range(len(most)):  # the inner rounds near it are those from number - 1 on, and before
        near = slice(max(0, number - 1 - _NEAR), max(0, number - 1 + _NEAR))
        most[number], count[number] = parts[near].max(initial=0), tells[near].sum()
    return np.where(count >= _FEW, most, 1)


def _moved(one: Sharer, rounds_ns: Ints, read: Ints, begin_ns: int) -> tuple[Ints, ...]:
    """Times; and of each time what the process has; what it has given back of what it had at the round before it, at
    least, and has besides, at least; and the same for the round after it. From the round before it began, or from the
    begin on, to the round after it ended."""
    first, last = np.searchsorted(rounds_ns, [one.at_ns[0], one.end_ns], side="right")
    around = rounds_ns[max(0, first - 1) : last + 1]
    ends = np.array([one.end_ns] if first else [begin_ns, one.end_ns], np.int64)
    times = np.unique(np.concatenate([one.at_ns, around, ends]))
    has = one.mapped.at(times)
    number = np.searchsorted(rounds_ns, times, side="right")
    is_first, is_last = np.diff(number, prepend=-1) != 0, np.diff(number, append=-1) != 0
    before, after = np.append([0], read)[number], np.append(read, [0])[number]
    since = lowest_since(np.where(is_first, np.minimum(before, has), has), number)
    until = lowest_since(np.where(is_last, np.minimum(after, has), has)[::-1], -number[::-1])[::-1]
    return times, has, before - since, has - since, after - until, has - until


def _largest(members: Sequence[Sharer], times: Ints) -> Ints:
    """What the process has that has most, at least."""
    most = np.zeros(len(times), np.int64)
    for one in sorted(members, key=lambda one: int(one.mapped.bytes.max()), reverse=True)[:_LARGEST]:
        np.maximum(most, one.mapped.at(times), out=most)
    return most


@dataclass(frozen=True, slots=True)
class _Path:
    """What is counted twice at each round, of which sum, and how far the sum has moved until then."""

    excess: Ints
    then: Ints
    way: Ints
    shares: NDArray[np.float64]

    def at(self, total: Ints, way: Ints, before: Ints, after: Ints) -> Ints:
        """It moves from that of one round to that of another as the sum moves. Where the sum is not between those of
        the rounds, as large a part of the rest is counted twice as of what has moved from round to round near that
        time."""
        one, other = np.maximum(0, before), np.minimum(after, len(self.then) - 1)
        part = np.clip((way - self.way[one]) / np.maximum(1, self.way[other] - self.way[one]), 0, 1)
        on_the_way = self.excess[one] + part * (self.excess[other] - self.excess[one])
        rest = total - self.then[one] - part * (self.then[other] - self.then[one])
        found: Ints = (on_the_way + self.shares[before + 1] * rest).astype(np.int64)
        return found


def _shares(then: Ints, excess: Ints) -> NDArray[np.float64]:
    """For each time before a round, and behind the last one: the part that is counted twice of what has moved near
    it."""
    moved, moved_excess = np.diff(then).astype(float), np.diff(excess).astype(float)
    both, square = (_near(column) for column in (moved * moved_excess, moved * moved))
    shares = np.clip(np.divide(both, square, out=np.full(len(both), 0.5), where=square > 0), 0, 1)
    return np.append(np.append(shares[:1], shares), shares[-1:]) if len(shares) else np.full(2, 0.5)


def _near(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of each element and of those near it."""
    sums = np.append([0.0], np.cumsum(column))
    places = np.arange(len(column))
    found: NDArray[np.float64] = sums[np.minimum(places + _NEAR + 1, len(column))] - sums[np.maximum(places - _NEAR, 0)]
    return found
