"""What the readings that a run's first process takes of the others tell of times at which these had no recorder, or
none any more."""

from __future__ import annotations

import numpy as np
import pytest

from capture_builder import Recording
from example_captures import in_memory
from hiwater.capture import Capture
from hiwater.capture.at_once import Machine
from hiwater.capture.limits import SeenFromOutside

MILLISECOND, MIB = 1_000_000, 1 << 20
BEGAN = 10**18


def recorded(pid: int, start_ms: int, length_ms: int, resident: int, started_by: str = "") -> Recording:
    one = Recording()
    one.header.update(pid=pid, process_start_ticks=pid, started_unix_ns=BEGAN + start_ms * MILLISECOND)
    one.header.update(resident_last_bytes=resident)
    if started_by:
        one.fact("started_by", started_by)
        one.fact("ppid", "1")
    for at_ms in range(0, length_ms, 10):
        one.now_ns = at_ms * MILLISECOND
        one.sample(resident)
    one.now_ns = length_ms * MILLISECOND
    return one


def machine(*recordings: Recording, read: dict[int, list[tuple[int, int, int]]]) -> Machine:
    """The first process read the others: by process number, times in milliseconds since it began, resident bytes and
    excess."""
    captures: list[Capture] = [in_memory(one) for one in recordings]
    captures[0].relatives = {pid: SeenFromOutside(*_columns(readings)) for pid, readings in read.items()}
    return Machine(captures)


def _columns(readings: list[tuple[int, int, int]]) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    at_ms, resident, excess = np.array(readings, np.int64).T
    return [BEGAN + at_ms * MILLISECOND, resident, excess]


def resident_at(found: Machine, at_ms: int) -> int:
    return sum(
        int(track.lasting().at(np.array([BEGAN + at_ms * MILLISECOND]))[0]) for _, track in found.resident_tracks
    )


def ended(recording: Recording) -> Recording:
    recording.end()
    return recording


def test_a_program_counts_from_its_start_on_and_not_before_it_executes() -> None:
    """Until then it has the memory of its parent, which posix_spawn() lends it."""
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), ended(recorded(2, 200, 90, 10 * MIB, "exec"))
    own = (100, 50 * MIB, 4 * MIB)
    found = machine(first, second, read={1: [own], 2: [own, (150, 7 * MIB, 4 * MIB)]})
    assert resident_at(found, 120) == 46 * MIB
    assert resident_at(found, 160) == (46 + 3) * MIB


def test_a_program_that_is_starting_counts_before_its_recording_begins() -> None:
    """The kernel started it at 50 ms, counted from the start of the machine as for the forked process; its recording
    begins with 12 MiB at 100 ms."""
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), ended(recorded(2, 20, 280, 10 * MIB, "fork"))
    third = ended(recorded(3, 100, 200, 12 * MIB, "exec"))
    for one, ticks in ((first, 0), (second, 2), (third, 5)):
        one.header.update(process_start_ticks=ticks)
    third.header.update(resident_start_bytes=12 * MIB)
    found = machine(first, second, third, read={})
    assert [resident_at(found, at_ms) for at_ms in (40, 70, 150)] == [60 * MIB, 66 * MIB, 72 * MIB]
    *_, (_, track) = found.resident_tracks
    assert track.unmeasured is not None and track.unmeasured[0] == 6 * MIB


def test_before_its_first_fork_a_process_may_have_shared_nothing() -> None:
    """It was read after that alone, and shares its libraries with its child then."""
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), ended(recorded(2, 100, 200, 10 * MIB, "fork"))
    found = machine(first, second, read={1: [(120, 50 * MIB, 8 * MIB)], 2: [(120, 10 * MIB, 8 * MIB)]})
    (_, track), _ = found.resident_tracks
    assert track.unmeasured is not None
    assert (track.bytes[0], track.unmeasured[0]) == (42 * MIB, 8 * MIB)


def test_a_process_counts_until_it_was_last_seen() -> None:
    """It was killed, and had no time to write down what it held at last."""
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), recorded(2, 20, 40, 10 * MIB, "fork")
    found = machine(first, second, read={2: [(90, 30 * MIB, 0), (120, 30 * MIB, 0)]})
    assert resident_at(found, 100) == (50 + 30) * MIB
    assert resident_at(found, 200) == 50 * MIB


@pytest.mark.parametrize("copied", [0, 20 * MIB])
def test_what_was_copied_since_the_last_reading_is_in_the_error(copied: int) -> None:
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), ended(recorded(2, 20, 280, 50 * MIB, "fork"))
    alone, shared, since = (10, 50 * MIB, 0), (30, 50 * MIB, 25 * MIB), [(100, 0, copied)]
    found = machine(first, second, read={1: [alone, shared], 2: [shared], **({0: since} if copied else {})})
    assert resident_at(found, 200) == 50 * MIB + copied // 2
    assert found.resident is not None and found.resident.error_bytes >= copied // 2


@pytest.mark.parametrize("copied", [0, 6])
def test_what_readings_before_and_after_show_not_to_be_copied_is_not_in_the_error(copied: int) -> None:
    """The page faults were of memory that was asked for and given back, but for `copied` MiB."""
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), ended(recorded(2, 20, 280, 50 * MIB, "fork"))
    second.header.update(resident_start_bytes=50 * MIB)
    alone, shared = (10, 50 * MIB, 0), (30, 50 * MIB, 25 * MIB)
    later = (200, 50 * MIB, (25 * MIB) - copied * MIB // 2)
    found = machine(first, second, read={1: [alone, shared, later], 2: [shared, later], 0: [(100, 0, 20 * MIB)]})
    assert resident_at(found, 150) == (50 * MIB) + copied * MIB // 2
    assert found.resident is not None and found.resident.error_bytes <= 2 * copied * MIB


def test_what_a_child_has_copied_since_its_parent_was_read_counts_half_in_the_parent() -> None:
    """The child writes to 20 of 50 MiB after 110 ms, and is read at 150 ms: neither shares them then."""
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), ended(recorded(2, 20, 280, 50 * MIB, "fork"))
    both = (100, 50 * MIB, 25 * MIB)
    found = machine(first, second, read={1: [(10, 50 * MIB, 0), both], 2: [both, (150, 50 * MIB, 15 * MIB)]})
    assert resident_at(found, 105) == 50 * MIB
    assert resident_at(found, 200) == (25 + 10 // 2 + 35) * MIB
    assert found.resident is not None and found.resident.error_bytes >= 10 // 2 * MIB


def test_what_a_child_copies_before_it_ends_counts_half_in_a_parent_that_is_read_after_that() -> None:
    """The child has copied 20 MiB by its last reading, at 150 ms, and ends at 180 ms; its parent is read at 250 ms."""
    first, second = ended(recorded(1, 0, 300, 60 * MIB)), ended(recorded(2, 20, 160, 60 * MIB, "fork"))
    shared = (100, 60 * MIB, 30 * MIB)
    of_child = [shared, (150, 60 * MIB, 10 * MIB)]
    found = machine(first, second, read={1: [(10, 60 * MIB, 0), shared, (250, 60 * MIB, 0)], 2: of_child})
    assert (resident_at(found, 120), resident_at(found, 160)) == ((30 + 30) * MIB, (40 + 50) * MIB)
    assert found.resident is not None and found.resident.error_bytes >= 10 * MIB


def test_memory_that_processes_have_shared_since_a_fork_counts_once_before_the_child_is_read() -> None:
    """The parent frees it before: then the child has it alone."""
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), ended(recorded(2, 20, 280, 50 * MIB, "fork"))
    second.header.update(resident_start_bytes=50 * MIB)
    found = machine(first, second, read={1: [(21, 50 * MIB, 25 * MIB), (100, 20 * MIB, 0)], 2: [(100, 50 * MIB, 0)]})
    assert resident_at(found, 60) == 50 * MIB


def test_a_forked_process_that_ends_before_anybody_is_read_adds_at_most_what_it_can_have_copied() -> None:
    """It executes another program after 6 ms. The first two are read as two before it and after it."""
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), ended(recorded(2, 20, 280, 50 * MIB, "fork"))
    third = ended(recorded(3, 40, 6, 50 * MIB, "fork"))
    for forked in (second, third):
        forked.header.update(resident_start_bytes=50 * MIB)
    both = [(at_ms, 50 * MIB, 25 * MIB) for at_ms in (30, 100)]
    found = machine(first, second, third, read={1: [(10, 50 * MIB, 0), *both], 2: both})
    assert resident_at(found, 43) == 50 * MIB
    *_, (_, track) = found.resident_tracks
    assert track.unmeasured is not None and MIB < track.unmeasured[0] < 25 * MIB


def test_a_forked_process_takes_from_the_parts_of_others_what_their_readings_before_and_after_it_do_not_tell() -> None:
    """All three share all that they have. The first two are read as two before it and after it."""
    first, second = ended(recorded(1, 0, 300, 48 * MIB)), ended(recorded(2, 20, 280, 48 * MIB, "fork"))
    third = ended(recorded(3, 40, 80, 48 * MIB, "fork"))
    for forked in (second, third):
        forked.header.update(resident_start_bytes=48 * MIB)
    both = [(at_ms, 48 * MIB, 24 * MIB) for at_ms in (30, 200)]
    read = {1: [(10, 48 * MIB, 0), *both], 2: both, 3: [(80, 48 * MIB, 32 * MIB)]}
    found = machine(first, second, third, read=read)
    assert [resident_at(found, at_ms) for at_ms in (35, 90, 150)] == [48 * MIB] * 3
    assert found.resident is not None and found.resident.error_bytes < 20 * MIB


def test_shared_memory_that_processes_touch_between_two_readings_counts_in_parts_as_it_is_touched() -> None:
    """Between the readings at 30 and 200 ms both processes touch the same 80 MiB, half of it by 110 ms."""
    both = [recorded(1, 0, 0, 20 * MIB), recorded(2, 0, 0, 20 * MIB, "fork")]
    for one in both:
        for at_ms in range(10, 300, 10):
            one.now_ns = at_ms * MILLISECOND
            one.sample(20 * MIB + min(80, max(0, at_ms - 70)) * MIB)
    read = [(30, 20 * MIB, 0), (200, 100 * MIB, 40 * MIB)]
    found = machine(*map(ended, both), read={1: read, 2: read})
    assert resident_at(found, 50) == 2 * 20 * MIB
    assert resident_at(found, 110) == pytest.approx((2 * 20 + 40) * MIB, abs=2 * MIB)
    assert found.resident is not None and abs(found.resident.bytes - (2 * 20 + 80) * MIB) <= 2 * MIB


def test_memory_that_four_processes_share_is_in_doubt_once() -> None:
    """They touch the same 80 MiB between two readings, and give it back before the next one: three quarters of it are
    in the excess of each. It was in RAM once, whoever had it."""
    all_four = [recorded(1, 0, 0, 20 * MIB), *(recorded(pid, 0, 0, 20 * MIB, "fork") for pid in (2, 3, 4))]
    for one in all_four:
        for at_ms in range(10, 300, 10):
            one.now_ns = at_ms * MILLISECOND
            one.sample(20 * MIB + (min(80, max(0, at_ms - 70)) * MIB if at_ms < 240 else 0))
    read = [(30, 20 * MIB, 0), (200, 100 * MIB, 60 * MIB), (280, 20 * MIB, 0)]
    found = machine(*map(ended, all_four), read=dict.fromkeys((1, 2, 3, 4), read))
    assert found.resident is not None and found.resident.bytes == (4 * 20 + 80) * MIB
    assert found.resident.error_bytes <= 60 * MIB


def test_a_process_that_gave_memory_back_since_it_was_read_shares_as_large_a_part_of_the_rest() -> None:
    """It falls from 60 to 20 MiB at 100 ms, and the child ends before the next reading."""
    first, second = recorded(1, 0, 0, 60 * MIB), ended(recorded(2, 20, 200, 60 * MIB, "fork"))
    for at_ms in range(10, 300, 10):
        first.now_ns = at_ms * MILLISECOND
        first.sample(60 * MIB if at_ms < 100 else 20 * MIB)
    shared, alone = (30, 60 * MIB, 30 * MIB), (250, 20 * MIB, 0)
    found = machine(ended(first), second, read={1: [(10, 60 * MIB, 0), shared, alone], 2: [shared]})
    assert resident_at(found, 50) == (30 + 30) * MIB
    assert resident_at(found, 150) == (10 + 30) * MIB
    (_, track), _ = found.resident_tracks
    assert track.unmeasured is not None
    at_150_ms = np.searchsorted(track.at_ns, BEGAN + 150 * MILLISECOND, side="right") - 1
    assert track.unmeasured[at_150_ms] == 10 * MIB  # it may share all of it, or none


def test_a_process_that_shares_as_much_at_the_next_reading_gave_back_what_was_its_own() -> None:
    """It falls from 80 to 60 MiB at 100 ms and is at 80 MiB again from 150 ms on."""
    first, second = ended(recorded(1, 0, 300, 50 * MIB)), recorded(2, 20, 0, 80 * MIB, "fork")
    second.header.update(resident_start_bytes=50 * MIB)
    for at_ms in range(0, 280, 10):
        second.now_ns = at_ms * MILLISECOND
        second.sample(60 * MIB if 100 <= at_ms < 150 else 80 * MIB)
    once, again = ((at_ms, 80 * MIB, 25 * MIB) for at_ms in (30, 250))
    read = {1: [(10, 50 * MIB, 0), (30, 50 * MIB, 25 * MIB), (250, 50 * MIB, 25 * MIB)], 2: [once, again]}
    found = machine(first, ended(second), read=read)
    assert [resident_at(found, at_ms) for at_ms in (60, 150, 200)] == [80 * MIB, 60 * MIB, 80 * MIB]
    assert found.resident is not None and found.resident.error_bytes < MIB


def test_a_process_that_gave_memory_back_before_it_was_read_shared_as_large_a_part_of_it() -> None:
    """It forks at 20 ms, falls from 60 to 20 MiB at 100 ms, and the two are read after that."""
    first, second = recorded(1, 0, 0, 60 * MIB), ended(recorded(2, 20, 280, 60 * MIB, "fork"))
    for at_ms in range(10, 300, 10):
        first.now_ns = at_ms * MILLISECOND
        first.sample(60 * MIB if at_ms < 100 else 20 * MIB)
    after = (200, 20 * MIB, 10 * MIB)
    found = machine(ended(first), second, read={1: [(10, 60 * MIB, 0), after], 2: [(200, 60 * MIB, 10 * MIB)]})
    (_, track), _ = found.resident_tracks
    at_50, at_150 = (np.searchsorted(track.at_ns, BEGAN + at * MILLISECOND, side="right") - 1 for at in (50, 150))
    assert track.unmeasured is not None
    assert (track.bytes[at_50], track.unmeasured[at_50]) == (30 * MIB, 20 * MIB)
    assert (track.bytes[at_150], track.unmeasured[at_150]) == (10 * MIB, 0)


def test_what_a_process_touches_after_it_has_given_shared_memory_back_is_its_own() -> None:
    """It falls from 60 to 20 MiB at 100 ms and is at 60 MiB again from 150 ms on; the child is read meanwhile."""
    first, second = recorded(1, 0, 0, 60 * MIB), ended(recorded(2, 20, 200, 60 * MIB, "fork"))
    for at_ms in range(10, 300, 10):
        first.now_ns = at_ms * MILLISECOND
        first.sample(20 * MIB if 100 <= at_ms < 150 else 60 * MIB)
    shared = (30, 60 * MIB, 30 * MIB)
    found = machine(
        ended(first), second, read={1: [(10, 60 * MIB, 0), shared, (250, 60 * MIB, 0)], 2: [shared, (120, 60 * MIB, 0)]}
    )
    (_, track), _ = found.resident_tracks
    before, at_160_ms = (int(track.last_at(np.array([BEGAN + at_ms * MILLISECOND]))[0]) for at_ms in (50, 160))
    assert before == 30 * MIB
    assert at_160_ms >= 50 * MIB


def test_the_error_of_a_sum_is_no_larger_than_the_distance_to_what_processes_surely_held() -> None:
    """At its highest instant nothing is known of what the second process holds until it is read again."""
    first, second = recorded(1, 0, 0, 2 * MIB), recorded(2, 0, 0, 0)
    for one, samples in ((first, ((0, 50), (100, 51), (102, 2))), (second, ((0, 12), (99, 12), (103, 0)))):
        for at_ms, resident in samples:
            one.now_ns = at_ms * MILLISECOND
            one.sample(resident * MIB)
    found = Machine([in_memory(ended(first)), in_memory(ended(second))]).resident
    assert found is not None and found.bytes == (51 + 12) * MIB and found.error_bytes == MIB
