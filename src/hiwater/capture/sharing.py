"""What processes share: how much of their pages others count, too, over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hiwater.capture.limits import SeenFromOutside
from hiwater.capture.model import Capture
from hiwater.capture.paths import Ints
from hiwater.capture.process import QUIET_IN_CHILD_NS
from hiwater.capture.run_index import ShortProcess
from hiwater.capture.tracks import Seen, Track, span

_NONE: Ints = np.zeros((0, 2), np.int64)
_COPIED_BYTES_PER_NS = 4
"""A page fault that copies a page takes a microsecond or more."""
_SHARES, _MUCH_BYTES = 8, 8 << 20


@dataclass(frozen=True, slots=True)
class Excess:
    """What other processes count of the pages that a process shares with them: wall clock times, bytes from each on,
    and how far these may be off."""

    at_ns: Ints
    bytes: Ints
    doubt_bytes: Ints
    is_read: NDArray[np.bool_]
    """Whether they are those of a reading at that time or before it."""
    of_ns: Ints
    """The times of the readings that had them, before or after."""
    pairs: tuple[Ints, Ints] = (_NONE, _NONE)
    """Two readings each with nothing between them that changes what is shared at once: the times, and the bytes then;
    two columns."""
    since_ns: Ints | None = None
    """The times of `known_ns`; None: the same as `at_ns`."""

    @property
    def known_ns(self) -> Ints:
        """From when on nothing is known but what others copied."""
        return self.at_ns if self.since_ns is None else self.since_ns


def shared(
    processes: Sequence[Capture], short: Sequence[ShortProcess], parents: Sequence[int | None], seen: Sequence[Seen]
) -> list[Excess]:
    """For each process, its excess over time.

    A fork, and the end of a process, change what is shared at once, in all that share it. A forked process shares at
    first what its parent shares then, and no more than it had; one that was never read shares later, too, what its
    parent does. If neither of them was read while it ran, the parent is still taken to share as before: then a sum has
    its pages already.
    """
    spans = [span(capture) for capture in processes]
    forks = [one.started_unix_ns for one in short if one.started_by == "fork"]
    forks += [
        start for capture, (start, _) in zip(processes, spans, strict=True) if capture.process.started_by == "fork"
    ]
    ends = [one.started_unix_ns + one.duration_ns for one in short]
    ends += [max([end, *start + one.at_ns[-1:]]) for (start, end), one in zip(spans, seen, strict=True)]
    changes = np.array(sorted([*forks, *(end + 1 for end in ends)]), np.int64)
    readings = []
    for capture, (start, _), outside in zip(processes, spans, seen, strict=True):
        own_at, own_excess = capture.shared_excess
        if capture.relatives and len(outside.at_ns):  # most of its later ones are among these, with their exact times
            following = np.searchsorted(outside.at_ns, own_at)
            is_new = np.append(outside.excess_bytes, -1)[following] != own_excess
            own_at, own_excess = own_at[is_new], own_excess[is_new]
        at, first = np.unique(np.concatenate([outside.at_ns, own_at]), return_index=True)
        readings.append((start + at, np.concatenate([outside.excess_bytes, own_excess])[first]))
    # The least that a program ever shared: libraries, which it shares before it forks, too. A forked process may not
    # have touched them.
    settled = [
        (
            capture.process.started_by,
            excess[at >= start + (QUIET_IN_CHILD_NS if capture.process.started_by == "fork" else 0)],
        )
        for capture, (start, _), (at, excess) in zip(processes, spans, readings, strict=True)
    ]
    least = min((int(excess.min()) for how, excess in settled if how != "fork" and len(excess)), default=0)
    lowest = min((int(excess.min()) for _, excess in settled if len(excess)), default=0)
    if len(changes) and min((int(at[0]) for at, _ in readings if len(at)), default=0) > changes[0]:
        lowest = 0  # nobody was read while the first process was alone
    forked_from = [
        parent if capture.process.started_by == "fork" else None
        for capture, parent in zip(processes, parents, strict=True)
    ]
    kin = dict[int, list[int]]()  # parents and children
    for number, parent in enumerate(parents):
        if parent is not None:
            kin.setdefault(number, []).append(parent)
            kin.setdefault(parent, []).append(number)
    found: dict[int, Excess] = {}
    for number in sorted(range(len(processes)), key=spans.__getitem__):
        capture, start, parent = processes[number], spans[number][0], forked_from[number]
        at, excess = readings[number]
        of_parent = None if parent is None else found.get(parent)
        if of_parent is not None and len(of_parent.at_ns):
            shared_at_first = np.minimum(of_parent.bytes, capture.resident.start_bytes)
            if not len(at):
                found[number] = (
                    replace(of_parent, bytes=shared_at_first)
                    if _has_reading(of_parent, spans[number])
                    else _of_unread(capture.resident.start_bytes, spans[number])
                )
                continue
            place = int(np.searchsorted(of_parent.at_ns, start, side="right")) - 1
            at, excess = np.insert(at, 0, start + 1), np.insert(excess, 0, shared_at_first[place])
        found[number] = _from_changes(at, excess, changes, (lowest, least))
        told = capture.relatives.get(0)
        copied = (
            _copied_by([readings[one] for one in kin.get(number, ())], at, changes)
            if told is None
            else _no_more_than_fell(told, readings, spans, changes)
        )
        if copied is not None:
            found[number] = _less_copied(found[number], copied, least)
    return [
        found[number]
        if parent is None
        else _with_unseen(found[number], found[parent], spans[number], spans[parent][1], capture, least)
        for number, (capture, parent) in enumerate(zip(processes, forked_from, strict=True))
    ]


def _with_unseen(
    excess: Excess, of_parent: Excess, ran: tuple[int, int], parents_end: int, capture: Capture, least: int
) -> Excess:
    """The excess of a forked process, which `ran`, and what the excess of its parent and of others lacks because of
    it, where the parent was last read before it began, and next after it had ended.

    A page of one more process counts in each of them for less; in all together for as much as in the new one. So it is
    the excess of the new one, over the number of those that had the page before: as many as the parent shared its pages
    with at the fork, on average.
    """
    if not len(of_parent.at_ns) or not excess.of_ns.any():
        return excess
    times = np.unique(np.concatenate([excess.at_ns, of_parent.at_ns]))
    place = np.maximum(0, np.searchsorted(excess.at_ns, times, side="right") - 1)
    parents_place = np.searchsorted(of_parent.at_ns, times, side="right") - 1
    had_then = of_parent.bytes[np.searchsorted(of_parent.at_ns, ran[0] - 1, side="right") - 1]
    began_with = capture.resident.start_bytes
    sharers = max(1.0, (began_with - least) / max(1, began_with - int(had_then)))
    read_at = of_parent.of_ns[parents_place]
    is_unseen = (times >= ran[0]) & (times < parents_end) & ((read_at <= ran[0]) | (read_at > ran[1]))
    more = np.where(is_unseen, np.maximum(0, excess.bytes[place] - least) / sharers, 0).astype(np.int64)
    if not more.any():
        return excess
    kept = np.isin(times, excess.at_ns) | (np.diff(more, prepend=0) != 0)
    times, place, more = times[kept], place[kept], more[kept]
    return Excess(
        times,
        excess.bytes[place] + more,
        excess.doubt_bytes[place] + more // 2,
        excess.is_read[place],
        excess.of_ns[place],
        excess.pairs,
        excess.known_ns[place],
    )


def _copied_by(kin: Sequence[tuple[Ints, Ints]], own_ns: Ints, changes: Ints) -> SeenFromOutside | None:
    """What its parent or its children have copied since a reading of a process, at the times `own_ns`, which shares it
    no more: by how much their excess has fallen since their reading nearest to that one, with no fork and no end
    between the readings. Up to the next reading where one of these comes first: else that tells."""
    span_of = np.searchsorted(changes, own_ns, side="right")
    is_last = np.append(span_of[1:] != span_of[:-1], [True])[: len(own_ns)]
    found = [np.zeros((3, 0), np.int64)]  # of which reading, when, and bytes
    for at, excess in kin if len(own_ns) else ():
        reading = np.searchsorted(own_ns, at, side="right") - 1
        where = np.searchsorted(changes, at, side="right")
        before = np.searchsorted(at, own_ns[reading], side="right") - 1
        behind = np.minimum(before + 1, len(at) - 1)
        has_before = (before >= 0) & (where[before] == span_of[reading])
        is_nearer = own_ns[reading] - at[before] <= at[behind] - own_ns[reading]
        base = np.where(has_before & (is_nearer | (where[behind] != span_of[reading])), before, behind)
        fallen = np.where((np.arange(len(at)) > base) & (where == span_of[reading]), excess[base] - excess, 0)
        counts = np.flatnonzero((reading >= 0) & is_last[reading] & (fallen > 0))
        found.append(np.stack([reading, at, fallen])[:, counts])
    reading, times, fallen = np.concatenate(found, axis=1)
    if not len(times):
        return None
    order = np.argsort(times, kind="stable")
    above = reading[order] * (int(fallen.max()) + 1)
    most = np.maximum.accumulate(fallen[order] + above) - above
    return SeenFromOutside(times[order], np.zeros_like(most), most)


def _no_more_than_fell(
    copied: SeenFromOutside, readings: Sequence[tuple[Ints, Ints]], spans: Sequence[tuple[int, int]], changes: Ints
) -> SeenFromOutside:
    """What all processes copied at most since they were read, as page faults tell it, and no more than their readings
    before and after that time allow: with each page that one copies, the excess of all falls by a page in sum. Where
    one has no reading after it, or there is a fork or an end between the two, they allow all."""
    times, most = copied.at_unix_ns, copied.shared_excess_bytes
    fallen, is_known = np.zeros(len(times), np.int64), np.ones(len(times), np.bool_)
    for (at, excess), (start, end) in zip(readings, spans, strict=True):
        runs = (times >= start) & (times < end)
        behind = np.searchsorted(at, times, side="right")
        has_both = (behind > 0) & (behind < len(at))
        one, other = np.maximum(behind - 1, 0)[has_both], behind[has_both]
        fallen[has_both] += np.maximum(0, excess[one] - excess[other])
        has_both[has_both] = np.searchsorted(changes, at[one], side="right") == np.searchsorted(changes, at[other])
        is_known &= has_both | ~runs
    return SeenFromOutside(times, copied.resident_bytes, np.where(is_known, np.minimum(most, fallen), most))


def _has_reading(excess: Excess, within: tuple[int, int]) -> bool:
    is_within = (excess.at_ns > within[0]) & (excess.at_ns < within[1])
    return bool((is_within & excess.is_read).any())


def _of_unread(start_bytes: int, ran: tuple[int, int]) -> Excess:
    """Of a forked process about which nothing is known from the time in which it `ran`: it shares all that it began
    with, less what it may have copied since."""
    copied = min(start_bytes, int((ran[1] - ran[0]) * _COPIED_BYTES_PER_NS))
    at, held, doubt = (np.array([value], np.int64) for value in (0, start_bytes, copied))
    return Excess(at, held, doubt, np.zeros(1, np.bool_), at)


def _from_changes(at: Ints, excess: Ints, changes: Ints, alone: tuple[int, int]) -> Excess:
    """Readings, each from the last change before it on. Since the first change after the reading before that, it was
    as much as the larger one. Between two readings without a change it is one of the two: one process or another
    wrote to what they share. Before the first reading and its changes it is between those of `alone`; since the
    first change behind the last one it is not less than that."""
    if not len(at):
        return Excess(at, excess, excess, np.zeros(0, np.bool_), at)
    lowest, least = alone
    before = np.concatenate([[0], at[:-1]])
    first, last = np.searchsorted(changes, before), np.searchsorted(changes, at) - 1
    has_changed = first <= last
    first_at = np.where(has_changed, changes[np.minimum(first, len(changes) - 1)], at)
    last_at = np.where(has_changed, changes[np.maximum(last, 0)], at)
    earlier = np.concatenate([[least], excess[:-1]])
    difference = np.abs(excess - earlier)
    follows = np.concatenate([~has_changed[1:], [False]])
    doubts = np.where(follows, np.concatenate([difference[1:], [0]]), 0)
    # At a reading nothing is in doubt; just after it, what changes until the next one is.
    behind = np.minimum(at + 1, np.append(first_at[1:], np.iinfo(np.int64).max))
    times = np.stack([first_at, last_at, at, behind], axis=1).ravel()
    values = np.stack([np.maximum(excess, earlier), excess, excess, excess], axis=1).ravel()
    of = np.stack([np.where(excess >= earlier, at, before), at, at, at], axis=1).ravel()
    nothing = np.zeros(len(at), np.int64)
    in_doubt = np.stack([np.where(has_changed, difference, 0), nothing, nothing, doubts], axis=1).ravel()
    later = changes[np.searchsorted(changes, at[-1], side="right") :][:1]
    ends = [np.full(len(later), value, np.int64) for value in (excess[-1], excess[-1] - least)]
    both = np.flatnonzero(follows)[:, None] + [0, 1]
    return Excess(
        np.concatenate([[0], times, later]),
        np.concatenate([[least], values, ends[0]]),
        np.concatenate([[least - lowest], in_doubt, ends[1]]),
        np.concatenate([[False], np.tile([False, False, True, True], len(at)), np.zeros(len(later), np.bool_)]),
        np.concatenate([[0], of, np.full(len(later), at[-1], np.int64)]),
        (at[both], excess[both]),
    )


def _less_copied(excess: Excess, copied: SeenFromOutside, least: int) -> Excess:
    """Since a reading so much was copied at most, and is not shared any more: half of it counts, and is in doubt."""
    if not len(excess.at_ns):
        return excess
    place = np.searchsorted(excess.at_ns, copied.at_unix_ns, side="right") - 1
    half = np.minimum(copied.shared_excess_bytes // 2, np.maximum(0, excess.bytes[place] - least))
    times = np.concatenate([excess.at_ns, copied.at_unix_ns])
    order = np.argsort(times, kind="stable")
    values = excess.bytes[place] - half, excess.doubt_bytes[place] + copied.shared_excess_bytes - half
    held, doubt = (np.concatenate(pair)[order] for pair in zip((excess.bytes, excess.doubt_bytes), values, strict=True))
    reading = np.append(np.arange(len(excess.at_ns)), place)[order]
    return Excess(
        times[order], held, doubt, excess.is_read[reading], excess.of_ns[reading], excess.pairs, excess.at_ns[reading]
    )


def less_shared(track: Track, excess: Excess) -> Track:
    """The track without what other processes count of the pages that it shares with them."""
    if not len(excess.at_ns):
        return track
    inside = excess.at_ns[(excess.at_ns >= track.at_ns[0]) & (excess.at_ns < track.end_ns)]
    times = np.unique(np.concatenate([track.at_ns, inside]))
    last = np.searchsorted(track.at_ns, times, side="right") - 1
    place = np.searchsorted(excess.at_ns, times, side="right") - 1
    held = track.bytes[last]
    less, further = _fallen_with(held, track, excess, place, _lower_of_both(track, times, excess))
    before, still_further = _falling_before(held, excess, place)
    less, doubt = less + before, excess.doubt_bytes[place] + further + still_further
    highest = track.highest_steps[1][last] - less
    moves, of_moving, in_doubt = _moving_with(track, times, excess)
    less, doubt = np.where(moves, of_moving, less), np.where(moves, 0, doubt)
    held = np.maximum(0, held - less)
    highest = np.where(moves, np.maximum(held, np.append(held[1:], 0)), highest)
    return replace(
        track,
        at_ns=times,
        bytes=held,
        least=None if track.least is None else np.maximum(0, track.least[last] - less),
        most=np.maximum(0, highest + doubt),
        unmeasured=doubt if track.unmeasured is None else doubt + track.unmeasured[last],
        moving=np.where(moves, in_doubt, 0) if moves.any() else None,
        shares=True,
    )


def _lower_of_both(track: Track, times: Ints, excess: Excess) -> Ints:
    """The lower one of the readings before and after each time, with no fork and no end between them; 0 where these
    are not both there. And 0 for a process whose excess was ever seen to move with its resident memory: what it asks
    for and gives back is shared memory."""
    at, shared_then = excess.pairs
    moved, shared_moved = np.diff(track.last_at(at), axis=1), np.diff(shared_then, axis=1)
    if not len(at) or (np.sign(moved) * shared_moved * _SHARES >= np.maximum(_MUCH_BYTES, np.abs(moved))).any():
        return np.zeros(len(times), np.int64)
    number = np.maximum(0, np.searchsorted(at[:, 0], times, side="right") - 1)
    is_between = (times >= at[number, 0]) & (times <= at[number, 1])
    return np.where(is_between, shared_then[number].min(axis=1), 0)


def _fallen_with(held: Ints, track: Track, excess: Excess, place: Ints, after: Ints) -> tuple[Ints, Ints]:
    """The excess at times of which `held` is the resident memory and `place` the number in `excess`, and by how much
    it may be off.

    A process that has given memory back since it was read shared some of it: it is taken to share as large a part of
    what it then had at least; what it has touched since is its own. It may have shared all of what it gave back, or
    none of it, and no more than it had; and where it shares as much at the next reading (`after`), it was its own.
    """
    less = excess.bytes[place]
    since = excess.known_ns[place]
    then = track.last_at(since)
    above = (np.cumsum(np.diff(since, prepend=since[:1]) != 0)) * (int(held.max(initial=0)) + 1)
    lowest = np.minimum.accumulate(held - above) + above  # since each reading: the next one's are below all of it
    fallen = np.where(excess.is_read[place], np.maximum(0, then - lowest), 0)
    after = np.minimum(after, np.minimum(less, lowest))
    rest = np.maximum(after, (less * (1 - fallen / np.maximum(1, then))).astype(np.int64))
    most, least = np.minimum(less, lowest), np.maximum(after, less - fallen)
    return rest, np.where(fallen > 0, np.maximum(most - rest, rest - least), 0)


def _falling_before(held: Ints, excess: Excess, place: Ints) -> tuple[Ints, Ints]:
    """For the times from the last change to the reading after it: what the process shared more than at the reading,
    because it gave memory back meanwhile, and by how much that may be off. It is taken to have shared as large a part
    of what it gave back as of what it kept; it may have shared all of it, or none."""
    precedes = ~excess.is_read[place] & np.append(excess.is_read, False)[place + 1]
    above = (place + precedes) * (int(held.max(initial=0)) + 1)
    lowest = np.minimum.accumulate((held + above)[::-1])[::-1] - above  # up to the reading
    fallen = np.where(precedes, held - lowest, 0)
    most = np.minimum(fallen, np.maximum(0, held - excess.bytes[place]))
    more = np.minimum(most, (excess.bytes[place] * (fallen / np.maximum(1, lowest))).astype(np.int64))
    return more, np.maximum(more, most - more)


def _moving_with(track: Track, times: Ints, excess: Excess) -> tuple[NDArray[np.bool_], Ints, Ints]:
    """Whether at these times the excess moved with resident memory, its bytes then, and by how much these may be off.

    A process that touches shared memory, or gives it back, has readings of which both rose, or both fell. Between two
    such readings the excess is taken to have moved as resident memory did, and lies within the two.
    """
    at, shared_then = excess.pairs
    number = np.searchsorted(at[:, 0], times, side="right") - 1
    is_between = number >= 0
    if not is_between.any():
        return is_between, times, times
    held = track.last_at(at)
    (one, other), (begin, end) = shared_then[number].T, held[number].T
    is_between &= (times > at[number, 0]) & (times < at[number, 1])
    moves = is_between & (np.sign(other - one) * np.sign(end - begin) > 0)
    here = track.last_at(times)
    share = np.clip((here - begin) / np.where(moves, end - begin, 1), 0, 1)
    less = one + ((other - one) * share).astype(np.int64)
    return moves, less, np.maximum(np.abs(less - one), np.abs(other - less))
