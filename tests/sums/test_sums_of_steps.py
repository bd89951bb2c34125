"""Sums of synthetic processes, of which each millisecond is known, as the engine would have recorded them: a peak
has the time of the tick before it, samples come late, and slices end where they may."""

from __future__ import annotations

import random

import numpy as np
import pytest

from capture_builder import Recording
from example_captures import in_memory
from hiwater.capture import at_once
from hiwater.report.text.processes import instant_words, shared_words
from recording import rounds

LENGTH_MS = 120
MILLISECOND = 1_000_000


def recorded(choice: random.Random, pid: int, start_ms: int, steps: list[int]) -> Recording:
    """A process that holds `steps[i]` bytes in its millisecond i."""
    one = Recording()
    one.header.update(pid=pid, process_start_ticks=pid, started_unix_ns=10**18 + start_ms * MILLISECOND)
    last_tick = 0.0
    node, held, next_tick = one.path(("f", "/a.py", 1)), 0, 0
    for at_ms, target in enumerate(steps):
        one.now_ns = at_ms * MILLISECOND
        if at_ms == next_tick:
            last_tick, next_tick = at_ms - 0.5 if at_ms else 0, at_ms + choice.randint(1, 15)
            one.now_ns = int(last_tick * MILLISECOND)
            one.sample(held)
            if choice.random() < 0.5:
                one.close_slice()
            one.now_ns = at_ms * MILLISECOND
        if target == held:
            continue
        is_told = choice.random() < 0.5  # of a large block: its slice ends before a rise, and after a fall
        if is_told and target > held:
            last_tick = at_ms
            one.close_slice()
        before = one.header["slice_peak_bytes"]
        (one.allocate if target > held else one.free)(node, abs(target - held), blocks=0)
        one.now_ns = at_ms * MILLISECOND
        if one.header["slice_peak_bytes"] > before:
            one.header["slice_peak_ns"] = int(last_tick * MILLISECOND)
        if is_told and target < held:
            last_tick = at_ms
            one.close_slice()
        held = target
    one.now_ns = len(steps) * MILLISECOND - MILLISECOND // 4
    one.end()
    return one


@pytest.mark.parametrize("part", range(10))
def test_the_sum_is_within_its_error_and_never_above_its_bound(part: int) -> None:
    for seed in range(part * rounds(100), (part + 1) * rounds(100)):
        choice = random.Random(seed)
        truth, captures = np.zeros(2 * LENGTH_MS, np.int64), []
        for pid in range(1, choice.randint(2, 5)):
            start_ms, steps = choice.randrange(LENGTH_MS), list[int]()
            while len(steps) < choice.randint(10, LENGTH_MS):
                steps += [choice.choice([0, 10, 200, 3000, 64_000])] * choice.randint(1, 40)
            steps = steps[:LENGTH_MS]
            truth[start_ms : start_ms + len(steps)] += steps
            captures.append(in_memory(recorded(choice, pid, start_ms, steps)))
        (machine,) = at_once.machines(captures)
        instant = machine.allocated
        assert instant is not None and instant.at_most_bytes is not None
        assert truth.max() <= instant.at_most_bytes >= instant.bytes, seed
        assert instant.bytes - instant.error_bytes <= truth.max(), (seed, instant, truth.max())


def test_the_words_of_a_sum_are_of_what_is_known() -> None:
    """An error that no distance of samples explains is said without one; a part of the processes is told from the
    others."""
    one = at_once.Instant(30 << 20, 2 << 20, None, 10**18, spacing_ns=0, processes=3, shared_once=2)
    assert instant_words(one).startswith("± 2.0 MiB · 3 processes at "), instant_words(one)
    assert shared_words(one) == ("pages that processes share count once (PSS) in 2 processes, and in full in 1 other")
    apart = at_once.Instant(30 << 20, 2 << 20, None, 10**18, spacing_ns=50 * MILLISECOND, processes=3)
    assert "± 2.0 MiB (samples 50.0 ms apart) · " in instant_words(apart)
