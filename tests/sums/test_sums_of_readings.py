"""What the readings that a run's first process takes of the others tell of times at which these had no recorder, or
none any more, and of times between two readings."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from capture_builder import Recording
from example_captures import in_memory, with_mapped_pages
from hiwater.capture import Capture
from hiwater.capture.at_once import Machine
from hiwater.capture.limits import SeenFromOutside

MILLISECOND, MIB = 1_000_000, 1 << 20
BEGAN = 10**18


class Read(NamedTuple):
    """A reading, in MiB: all that is resident, what others count of the anonymous memory, and the same of pages of
    files and of shared memory. The processes share with one other at most."""

    at_ms: int
    resident: int
    excess: float = 0
    mapped: int = 0
    mapped_excess: float = 0

    @property
    def row(self) -> list[int]:
        shared = 2 * (self.excess + self.mapped_excess)
        figures = (self.resident, self.excess, shared, self.mapped, self.mapped_excess)
        return [BEGAN + self.at_ms * MILLISECOND, *(int(figure * MIB) for figure in figures)]


def recorded(
    pid: int,
    start_ms: int,
    length_ms: int,
    resident: int | Callable[[int], int],
    started_by: str = "",
    mapped: Callable[[int], int] = lambda _: 0,
) -> Recording:
    """A sample each 10 ms; MiB, of which some may depend on the time since the first process began."""
    held = resident if callable(resident) else (lambda _: resident)
    one = Recording()
    one.header.update(pid=pid, process_start_ticks=pid, started_unix_ns=BEGAN + start_ms * MILLISECOND)
    one.header.update(resident_last_bytes=held(start_ms + length_ms) * MIB)
    if started_by:
        one.fact("started_by", started_by)
        one.fact("ppid", "1")
        one.header.update(resident_start_bytes=held(start_ms) * MIB)
    for at_ms in range(0, length_ms, 10):
        one.now_ns = at_ms * MILLISECOND
        one.sample(held(start_ms + at_ms) * MIB, mapped(start_ms + at_ms) * MIB)
    one.now_ns = length_ms * MILLISECOND
    return one


def machine(*recordings: Recording, read: dict[int, list[Read]]) -> Machine:
    """The first process read the others: by process number."""
    captures: list[Capture] = [with_mapped_pages(one) for one in recordings]
    captures[0].relatives = {
        pid: SeenFromOutside(*np.array([one.row for one in readings], np.int64).T) for pid, readings in read.items()
    }
    return Machine(captures)


def resident_at(found: Machine, at_ms: int) -> tuple[float, float]:
    """MiB, and how far they may be off."""
    at = BEGAN + at_ms * MILLISECOND
    held, error = 0, 0
    for track in (*(track for _, track in found.resident_tracks), *found.counted_twice):
        if track.at_ns[0] <= at < track.lasting().end_ns:
            place = np.searchsorted(track.at_ns, at, side="right") - 1
            held += int(track.bytes[place])
            error += 0 if track.unmeasured is None else int(track.unmeasured[place])
    return held / MIB, error / MIB


def ended(recording: Recording) -> Recording:
    recording.end()
    return recording


def test_a_program_counts_from_its_start_on_and_not_before_it_executes() -> None:
    """Until then it has the memory of its parent, which posix_spawn() lends it."""
    first, second = ended(recorded(1, 0, 300, 50)), ended(recorded(2, 200, 90, 10, "exec"))
    found = machine(first, second, read={1: [Read(100, 50)], 2: [Read(100, 50), Read(150, 7)]})
    assert resident_at(found, 120)[0] == 50
    assert resident_at(found, 160)[0] == 50 + 7


def test_a_program_that_is_starting_counts_before_its_recording_begins() -> None:
    """The kernel started it at 50 ms, counted from the start of the machine as for the forked process; its recording
    begins with 12 MiB at 100 ms. The forked process shares its 10 MiB."""
    first, second = ended(recorded(1, 0, 300, 50)), ended(recorded(2, 20, 280, 10, "fork"))
    third = ended(recorded(3, 100, 200, 12, "exec"))
    for one, ticks in ((first, 0), (second, 2), (third, 5)):
        one.header.update(process_start_ticks=ticks)
    found = machine(first, second, third, read={1: [Read(25, 50, 5)], 2: [Read(25, 10, 5)]})
    assert [resident_at(found, at_ms)[0] for at_ms in (40, 70, 150)] == [50, 56, 62]
    *_, (_, track) = found.resident_tracks
    assert track.unmeasured is not None and track.unmeasured[0] == 6 * MIB


def test_a_process_counts_until_it_was_last_seen() -> None:
    """It was killed, and had no time to write down what it held at last."""
    first, second = ended(recorded(1, 0, 300, 50)), recorded(2, 20, 40, 10, "exec")
    found = machine(first, second, read={2: [Read(90, 30), Read(120, 30)]})
    assert resident_at(found, 100)[0] == 50 + 30
    assert resident_at(found, 200)[0] == 50


FORKED = [ended(recorded(1, 0, 300, 50)), ended(recorded(2, 20, 280, 50, "fork"))]
"""At 20 ms the second process shares all that the first one has."""


def test_before_the_first_fork_nothing_is_shared_and_after_it_all() -> None:
    shared = Read(30, 50, 25)
    found = machine(*FORKED, read={1: [shared], 2: [shared]})
    assert [resident_at(found, at_ms) for at_ms in (10, 30, 200)] == [(50, 0)] * 3
    assert resident_at(found, 21)[0] == 50


@pytest.mark.parametrize("copied", [0, 20])
def test_what_was_copied_since_the_last_reading_counts_half_and_is_in_the_error(copied: int) -> None:
    shared = Read(30, 50, 25)
    found = machine(*FORKED, read={1: [shared], 2: [shared], **({0: [Read(100, 0, copied)]} if copied else {})})
    assert resident_at(found, 200) == (50 + copied // 2, copied // 2)
    assert found.resident is not None and found.resident.error_bytes >= copied // 2 * MIB


@pytest.mark.parametrize("copied", [0, 6])
def test_what_readings_before_and_after_show_not_to_be_copied_is_not_in_the_error(copied: int) -> None:
    """The page faults were of memory that was asked for and given back, but for `copied` MiB."""
    shared, later = Read(30, 50, 25), Read(200, 50, 25 - copied / 2)
    found = machine(*FORKED, read={1: [shared, later], 2: [shared, later], 0: [Read(100, 0, 20)]})
    held, error = resident_at(found, 150)
    assert 50 <= held <= 50 + copied and error <= copied
    assert resident_at(found, 250) == (50 + copied, 0)


def test_what_a_process_reads_of_itself_tells_what_it_may_have_copied() -> None:
    """The child writes to 20 MiB, and reads itself before it ends: the other one shares as much with it. Nobody else is
    read after that."""
    first, second = ended(recorded(1, 0, 300, 50)), recorded(2, 20, 0, 50, "fork")
    for at_ms in range(0, 200, 10):
        second.now_ns = at_ms * MILLISECOND
        second.sample(50 * MIB)
    second.look_at_shared(15 * MIB, 20 * MIB)
    shared = Read(30, 50, 25)
    found = machine(first, ended(second), read={1: [shared], 2: [shared]})
    assert resident_at(found, 100) == (50, 0)
    assert resident_at(found, 210) == (50 + 20, 0)


def test_a_process_that_nobody_read_may_have_copied_what_the_time_allows() -> None:
    """It ends after 6 ms. The first two are read as two before it and after it."""
    third = ended(recorded(3, 40, 6, 50, "fork"))
    both = [Read(at_ms, 50, 25) for at_ms in (30, 100)]
    found = machine(*FORKED, third, read={1: both, 2: both})
    held, error = resident_at(found, 43)
    assert 50 <= held <= 50 + 23 and held - error <= 50 and error < 25
    assert resident_at(found, 105) == (50, 0)


def test_a_forked_process_of_which_there_is_no_sample_shares_what_it_began_with() -> None:
    """It ends after a millisecond. In that it may copy 4 MiB."""
    second = recorded(2, 40, 0, 50, "fork")
    second.now_ns = MILLISECOND
    found = machine(ended(recorded(1, 0, 300, 50)), ended(second), read={1: [Read(30, 50), Read(100, 50)]})
    held, error = resident_at(found, 41)
    assert held - error <= 50 and held + error <= 54
    assert found.resident is not None and found.resident.bytes <= 54 * MIB


def test_the_end_of_a_process_adds_nothing() -> None:
    """It shared all that it had. Whether its parent still has that is not known until it is read."""
    first, second = ended(recorded(1, 0, 300, 50)), ended(recorded(2, 20, 100, 50, "fork"))
    shared = Read(30, 50, 25)
    found = machine(first, second, read={1: [shared, Read(250, 50, 0)], 2: [shared]})
    assert [resident_at(found, at_ms)[0] for at_ms in (100, 200)] == [50, 50]
    assert found.resident is not None and found.resident.bytes == 50 * MIB and found.resident.error_bytes == 0


def test_what_a_process_gives_back_may_be_what_it_shared() -> None:
    """The parent falls from 80 to 50 MiB at 100 ms, and shared 50 of these."""
    first = ended(recorded(1, 0, 300, lambda at_ms: 50 if at_ms >= 100 else 80))
    second = ended(recorded(2, 20, 280, 50, "fork"))
    read = {1: [Read(30, 80, 25)], 2: [Read(30, 50, 25)]}
    found = machine(first, second, read=read)
    held, error = resident_at(found, 150)
    assert held - error <= 50 and held + error >= 80
    read[1].append(Read(200, 50, 10))
    read[2].append(Read(200, 50, 10))
    assert resident_at(machine(first, second, read=read), 150) == (80, 0)


def test_what_a_process_touches_after_it_has_given_memory_back_is_its_own() -> None:
    second = ended(recorded(2, 20, 280, lambda at_ms: 20 if 100 <= at_ms < 150 else 60, "fork"))
    first, shared = ended(recorded(1, 0, 300, 60)), Read(30, 60, 30)
    found = machine(first, second, read={1: [shared], 2: [shared]})
    assert [resident_at(found, at_ms)[0] for at_ms in (50, 120, 160)] == [60, 60, 100]


def test_who_was_not_read_in_a_round_shares_as_much_as_before() -> None:
    shared, later = Read(30, 50, 25), Read(100, 50, 25)
    found = machine(*FORKED, read={1: [shared, later], 2: [shared]})
    assert resident_at(found, 200) == (50, 0)


def test_a_round_in_which_not_all_were_read_since_a_fork_tells_nothing() -> None:
    """The kernel gave the reader no time: of three processes that share all, one was read."""
    third = ended(recorded(3, 60, 240, 50, "fork"))
    shared = Read(30, 50, 25)
    found = machine(*FORKED, third, read={1: [shared], 2: [shared, Read(100, 50, 33)]})
    held, error = resident_at(found, 200)
    assert held - error <= 50 <= held < 80


def with_libraries(count: int, read_ms: dict[int, list[int]]) -> Machine:
    """Processes, each with the same 20 MiB of libraries and 40 MiB of its own, read at different times."""
    rows = {pid: [Read(at_ms, 60, 0, 20, 20 - 20 / count) for at_ms in times] for pid, times in read_ms.items()}
    return machine(*(ended(recorded(pid, 0, 1000, 60, "exec", lambda _: 20)) for pid in range(1, count + 1)), read=rows)


def test_libraries_of_processes_that_were_read_one_by_one_count_once() -> None:
    """The kernel gave the reader time for one reading in each round, and nothing has moved meanwhile."""
    found = with_libraries(4, {1: [100], 2: [200], 3: [300], 4: [400]})
    assert [resident_at(found, at_ms) for at_ms in (410, 900)] == [(4 * 40 + 20, 0)] * 2


def test_libraries_of_a_process_that_was_never_read_count_as_those_of_the_others() -> None:
    found = with_libraries(4, {1: [100], 2: [200], 3: [300]})
    held, error = resident_at(found, 500)
    assert held == pytest.approx(4 * 40 + 20, abs=0.01) and error >= 15


def test_pages_of_files_of_forked_processes_that_nobody_read_are_in_doubt() -> None:
    """The kernel never gave the reader time. Of a process that executed a program they count in full."""
    first, second, third = (
        ended(recorded(pid, start_ms, 300 - start_ms, 60, how, lambda _: 20))
        for pid, start_ms, how in ((1, 0, ""), (2, 50, "fork"), (3, 100, "exec"))
    )
    pair, with_third = machine(first, second, read={}), machine(first, second, third, read={})
    assert [resident_at(pair, at_ms) for at_ms in (20, 75)] == [(60 - 20 / 2, 20 / 2), (2 * 60 - 2 * 60 / 2, 60)]
    assert resident_at(with_third, 150) == (3 * 60 - 2 * 60 / 2, 60)


def test_a_process_without_a_sample_has_no_part() -> None:
    third = recorded(3, 60, 0, 50, "fork")
    third.look_at_shared(10 * MIB, 0)
    shared = Read(30, 50, 25)
    found = machine(*FORKED, third, read={1: [shared], 2: [shared]})
    assert resident_at(found, 200)[0] == 50


def shared_memory(*, until_ms: int) -> Callable[[int], int]:
    return lambda at_ms: min(80, max(0, at_ms - 70)) if at_ms < until_ms else 0


def test_shared_memory_that_processes_touch_between_two_rounds_counts_in_parts_as_it_is_touched() -> None:
    """Between the rounds at 30 and 200 ms both processes touch the same 80 MiB, half of it by 110 ms."""
    touched = shared_memory(until_ms=300)
    first, second = (
        ended(recorded(pid, 0, 300, lambda at_ms: 20 + touched(at_ms), how, touched))
        for pid, how in ((1, ""), (2, "exec"))
    )
    read = [Read(30, 20), Read(200, 100, 0, 80, 40)]
    found = machine(first, second, read={1: read, 2: read})
    assert resident_at(found, 50)[0] == 2 * 20
    assert resident_at(found, 110)[0] == pytest.approx(2 * 20 + 40, abs=2)
    assert found.resident is not None and abs(found.resident.bytes - (2 * 20 + 80) * MIB) <= 2 * MIB


def test_memory_that_four_processes_share_is_in_doubt_once() -> None:
    """They touch the same 80 MiB between two rounds, and give it back before the next one."""
    touched = shared_memory(until_ms=240)
    four = [ended(recorded(pid, 0, 300, lambda at_ms: 20 + touched(at_ms), "exec", touched)) for pid in (1, 2, 3, 4)]
    read = [Read(30, 20), Read(200, 100, 0, 80, 60), Read(280, 20)]
    found = machine(*four, read=dict.fromkeys((1, 2, 3, 4), read))
    assert found.resident is not None and found.resident.bytes == (4 * 20 + 80) * MIB
    assert found.resident.error_bytes <= 60 * MIB


def test_shared_memory_that_one_process_after_the_other_has_counts_as_in_the_rounds() -> None:
    """One maps 40 MiB, and gives it back, while the other one does not have it, and so on: rounds see no page twice."""

    def turns(odd: int) -> Callable[[int], int]:
        return lambda at_ms: 40 if at_ms // 20 % 2 == odd else 0

    first, second = (
        ended(recorded(pid, 0, 600, lambda at_ms, odd=pid % 2: 60 + turns(odd)(at_ms), "exec", turns(pid % 2)))
        for pid in (1, 2)
    )
    times = range(45, 600, 50)
    read = {pid: [Read(at, 60 + turns(pid % 2)(at), 0, turns(pid % 2)(at)) for at in times] for pid in (1, 2)}
    found = machine(first, second, read=read)
    assert found.resident is not None and found.resident.bytes == (2 * 60 + 40) * MIB
    assert found.resident.error_bytes < 5 * MIB


def test_the_error_of_a_sum_is_no_larger_than_the_distance_to_what_processes_surely_held() -> None:
    """At its highest instant nothing is known of what the second process holds until it is read again."""
    first, second = recorded(1, 0, 0, 2), recorded(2, 0, 0, 0)
    for one, samples in ((first, ((0, 50), (100, 51), (102, 2))), (second, ((0, 12), (99, 12), (103, 0)))):
        for at_ms, resident in samples:
            one.now_ns = at_ms * MILLISECOND
            one.sample(resident * MIB)
    found = Machine([in_memory(ended(first)), in_memory(ended(second))]).resident
    assert found is not None and found.bytes == (51 + 12) * MIB and found.error_bytes == MIB
