"""What processes share: by how much the sum of their resident memory is too high, over time, because pages count in
each process that has them.

A process that reads others does so in rounds, all at nearly one moment. Then this is known: it is the sum of RSS minus
PSS. Between two rounds it changes as follows:

- Anonymous memory is shared by a fork: all that the child has then. A process shares it no longer once it has given it
  back, has ended, or has written to it, which copies the page. What it gives back may also have been its own.
- Pages of files and of shared memory are shared once a second process touches them (mapped_pages.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hiwater.capture import mapped_pages
from hiwater.capture.model import Capture
from hiwater.capture.paths import Ints, sums_over_time
from hiwater.capture.shared_rounds import Rounds, Sharer, lowest_since, sums_until
from hiwater.capture.tracks import Seen, Track

_COPIED_BYTES_PER_NS = 4
"""A page fault that copies a page takes a microsecond or more."""


def counted_twice(captures: Sequence[Capture], parents: Sequence[int | None], seen: Sequence[Seen]) -> list[Track]:
    """What the sum of these processes is too high by, as negative bytes: for each family of processes what is known of
    anonymous memory, and of pages of files and of shared memory."""
    found = []
    for family in _families(captures, parents):
        if len(family) < 2:
            continue
        rounds = Rounds([captures[number] for number in family])
        of_family = {
            number: Sharer(captures[number], seen[number], rounds)
            for number in family
            if len(captures[number].timeline)
            or len(seen[number].at_ns)
            or captures[number].process.started_by == "fork"
        }
        members = sorted(of_family.values(), key=lambda one: int(one.at_ns[0]))
        for number, member in of_family.items():
            parent = parents[number]
            if captures[number].process.started_by == "fork" and member is not members[0]:
                member.first_shared = int(member.anonymous.bytes[0])  # by a process that has no capture, too
                if parent is not None and parent in of_family:
                    of_family[parent].forks_ns.append(int(member.at_ns[0]))
        if any(member.first_shared for member in members):
            found.append(_of_forks(members, rounds))
        forked = [member for member in members if member.shares_by_fork]
        if len(rounds.at_ns) and len(members) > 1:
            found.append(mapped_pages.counted_twice(members, rounds))
        elif len(forked) > 1:  # the pages of others count in each
            found.append(mapped_pages.unread(forked))
    return found


def _families(captures: Sequence[Capture], parents: Sequence[int | None]) -> list[list[int]]:
    """Parents and their children, and who is read by one of them."""
    first = list(range(len(captures)))
    for number in sorted(range(len(captures)), key=lambda one: captures[one].process.started_unix_ns):
        parent = parents[number]
        if parent is not None:
            first[number] = first[parent]
    for reader, capture in enumerate(captures):
        for number in range(len(captures)) if capture.relatives else ():
            is_read = captures[number].process.pid in capture.relatives
            if first[number] == number and is_read and captures[number].header["boot_id"] == capture.header["boot_id"]:
                first = [first[reader] if one == number else one for one in first]
    families = dict[int, list[int]]()
    for number, one in enumerate(first):
        families.setdefault(one, []).append(number)
    return list(families.values())


def _of_forks(members: Sequence[Sharer], rounds: Rounds) -> Track:
    changes = [_lost(one) for one in members]
    begin_ns = min(int(one.at_ns[0]) for one in members) - 1
    sharing = [
        (one, (times, early))
        for one, (times, _, _, early, *_) in zip(members, changes, strict=True)
        if one.shares_by_fork
    ]
    rounds_ns, excess, most_lost = rounds.excess(sharing)
    changes.append((np.append([begin_ns], rounds_ns), *[np.zeros(1 + len(rounds_ns), np.int64)] * 6))
    told_ns, copied = rounds.copied
    none = np.zeros_like(copied)
    changes += [
        (rounds.copied_since, none, none, copied, none, none, none),
        (told_ns, none, copied // 2, none, copied, copied, copied),
    ]
    times, shared, likely_lost, lost_early, lost_late, surely_lost, moved = sums_over_time(changes)

    number = np.searchsorted(rounds_ns, times, side="right")
    places = np.append([0], np.searchsorted(times, rounds_ns))
    # Before the first fork nothing is shared. What rises by more than forks is shared with processes without a capture.
    then = np.append([0], excess) - shared[places]
    then = np.minimum.accumulate(then) + shared[places]
    following = np.minimum(number + 1, len(then) - 1)
    before, after = places[number], places[following]
    since = then[number] + shared - shared[before]
    most_lost = np.append([0], most_lost)
    least, most = since - (lost_early - lost_early[before]) - most_lost[number], since
    found = since - (likely_lost - likely_lost[before])
    has_after = number < len(rounds_ns)
    until = then[following] + shared - shared[after]
    least = np.where(has_after, np.maximum(least, until - most_lost[following]), least)
    lost_until = np.minimum(lost_late[after] - surely_lost, moved[after] - moved)
    most = np.where(has_after, np.minimum(most, until + lost_until), most)
    found = np.where(has_after, (found + until + likely_lost[after] - likely_lost) // 2, found)
    least, most = np.maximum(0, np.minimum(least, most)), np.maximum(0, np.maximum(least, most))
    return Track.of_counted_twice(times, np.clip(found, least, most), least, most, max(one.end_ns for one in members))


def _lost(one: Sharer) -> tuple[Ints, ...]:
    """Times, and of each what a process shares more because it was forked then; and by how much it shares less
    since, likely; at most, as early as that may have been, and as late; at least; and what may be part of it.

    A fork makes it share all that it has. At a reading its excess is known: of a page that it shares with one other
    process that is half of it.
    """
    began = int(one.at_ns[0])
    first, forks = one.first_shared, np.array(one.forks_ns, np.int64)
    read, excess = one.anonymous_read, one.anonymous_excess
    most_shared = np.minimum(read, np.minimum(2 * excess, one.shared_read - one.mapped_excess))
    at_forks = one.anonymous.at(forks)
    bases = [  # when, what it has then, and what it shares of that, at most
        np.array([[began], [int(one.anonymous.bytes[0])], [first]], np.int64),
        np.stack([forks, at_forks, at_forks]),
        np.stack([one.read_ns, read, most_shared]),
    ]
    known = np.concatenate(bases, axis=1)
    known = known[:, np.argsort(known[0], kind="stable")]
    times = np.unique(np.concatenate([one.at_ns, known[0], one.own_ns, np.array([one.end_ns], np.int64)]))
    has = one.anonymous.at(times)
    of = np.searchsorted(known[0], times, side="right") - 1
    base, most_shared = known[1:, of]
    given = base - lowest_since(np.minimum(base, has), of)
    copied = _copied(one, times)
    copied = copied - copied[np.searchsorted(times, known[0])][of]
    early = np.minimum(given + copied, most_shared)
    most_copied = np.minimum(copied, most_shared)  # it may have copied nothing
    late = np.minimum(given, most_shared) + most_copied
    surely = np.maximum(0, given - base + most_shared) + most_copied
    moved = given + most_copied
    likely = np.minimum(early, (given * (most_shared / np.maximum(1, base))).astype(np.int64) + copied // 2)
    is_first = np.diff(of, prepend=-1) != 0
    likely, early, late, surely, moved = (
        np.diff(column, prepend=0) + np.where(is_first, np.append([0], until[:-1]), 0)
        for column, until in ((likely, likely), (early, early), (late, late), (surely, late), (moved, moved))
    )
    shared = np.where(times == began, first, 0)
    # Until it is read it may have copied what it began with.
    read_ns, _, still_shared, _ = one.readings[:, 0].tolist() if one.readings.size else (one.end_ns, 0, 0, 0)
    unseen = max(0, min(first - still_shared, (read_ns - began) * _COPIED_BYTES_PER_NS))
    at_reading = np.searchsorted(times, read_ns)
    early[0] += unseen
    for column in (late, surely, moved):
        column[at_reading] += unseen
    likely[at_reading] += unseen // 2
    return times, shared, likely, early, late, surely, moved


def _copied(one: Sharer, times: Ints) -> Ints:
    """What a process has copied up to each time, at most, as its own readings tell: a page that it shares with one
    other is half in its excess."""
    at, fallen = one.falls
    return sums_until(at, 2 * fallen * np.isin(at, one.own_ns))(times)
