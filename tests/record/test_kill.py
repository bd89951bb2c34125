"""A program killed at any moment leaves a capture that opens at once and adds up."""

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import compiled
import hiwater
import naive_reader
from recording import SHARE, child_environment, needs_engine, write_program

pytestmark = needs_engine

KILLS = 10 + 90 // SHARE
LARGEST_BLOCK = 3 << 20
PROGRAM = """
import os, random, threading, signatures
heap = signatures.load("heap")

def native(seed):
    draw, kept = random.Random(seed), []
    while True:
        kept.append(heap.take_malloc(draw.randrange(1, 1 << 20)))
        if len(kept) > 50:
            heap.give_back(kept.pop(draw.randrange(len(kept))))
        if draw.random() < 0.1:
            heap.give_back_chain(heap.take_chain(200, 48))

def objects(seed):
    draw, kept = random.Random(seed), {}
    while True:
        number = draw.randrange(5_000)
        kept[number] = [str(number)] * draw.randrange(50)
        if draw.random() < 0.01:
            exec(f"def made_{number}():\\n    return bytes({number * 100})", kept_names := {})
            kept[number] = kept_names[f"made_{number}"]()

def main():
    worker = threading.Thread(target=native, args=(os.getpid(),), daemon=True)
    worker.start()
    os.write(1, b"!")
    objects(os.getpid())
"""


def kill_one(folder: Path, delay: float) -> Path:
    """Starts a recorded program, waits until it works and a little longer, and kills it."""
    folder.mkdir()
    capture = folder / "capture.hiw"
    _, driver = write_program(folder, PROGRAM, capture=capture)
    child = subprocess.Popen([sys.executable, driver], stdout=subprocess.PIPE, env=child_environment())
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.read(1) == b"!"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, "the program ended before it was killed"
    return capture


def test_a_killed_program_leaves_a_sound_capture(tmp_path: Path) -> None:
    compiled.library("heap")
    draw = random.Random(20_240)
    delays = [draw.uniform(0, 0.15) for _ in range(KILLS)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        captures = list(pool.map(kill_one, [tmp_path / str(number) for number in range(KILLS)], delays))
    for path in captures:
        naive = naive_reader.read(path)
        naive.check(in_flight_bytes=2 * LARGEST_BLOCK)
        assert naive.header["state"] == 1, "nobody can have told it that it ended"
        assert naive.header["live_bytes"] > 0
        assert any(stack.passes("native") for stack in naive.stacks("end"))
        capture = hiwater.open(path)
        assert capture.process.ended == "killed"
        assert capture.problems() == []


def test_the_product_reads_what_a_killed_program_left(tmp_path: Path) -> None:
    compiled.library("heap")
    path = kill_one(tmp_path / "one", 0.3)
    times = [time.process_time()]
    naive = naive_reader.read(path)
    times.append(time.process_time())
    capture = hiwater.open(path)
    times.append(time.process_time())
    assert times[2] - times[1] < times[1] - times[0], "slower than the naive reader"
    assert capture.process.ended == "killed"
    assert capture.peak.allocated_bytes == sum(stack.bytes for stack in capture.peak.stacks)
    assert capture.peak.allocated_bytes == pytest.approx(naive.peak_bytes, abs=2 * LARGEST_BLOCK)


def test_a_capture_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    compiled.library("heap")
    capture = tmp_path / "capture.hiw"
    _, driver = write_program(tmp_path, PROGRAM, capture=capture)
    with subprocess.Popen([sys.executable, driver], stdout=subprocess.PIPE, env=child_environment()) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.read(1) == b"!"
            for _ in range(10):
                # Stopped, so that the file holds still while the naive reader copies it: any instant will do.
                os.kill(child.pid, signal.SIGSTOP)
                os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
                naive_reader.read(capture).check(in_flight_bytes=2 * LARGEST_BLOCK)
                os.kill(child.pid, signal.SIGCONT)
                time.sleep(0.05)
        finally:
            child.kill()
