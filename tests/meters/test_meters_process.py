"""Meters that read the kernel: each against another way to know the same, and against what can go wrong with it."""

import ctypes
import json
import mmap
import os
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc

import psutil
import pytest

import compiled
from children import run_python
from hiwater import meters
from hiwater._os.kept_file import KeptFile
from hiwater._os.procfs import PAGE_BYTES, peak_error_bytes
from hiwater.errors import MeterUnavailable
from hiwater.meters import cgroup, counters, tree
from hiwater.meters.process import Pss, ResidentMeter, Uss
from waiting import wait_until

ctypes.CDLL(None).mallopt(-3, 128 * 1024)  # M_MMAP_THRESHOLD stays: what is freed goes back
MIB = 2**20
PEAK_LIST = 30_000_000  # 229 MiB: the temporary of the published measurements


def opened(meter):
    meter.open()
    return meter


@pytest.fixture
def resident():
    meter = opened(ResidentMeter())
    if not meter.traits.exact:
        pytest.skip(meter.traits.reason)
    yield meter
    meter.close()


def run(code, *command):
    """Run `code` in a fresh interpreter and return the JSON it prints."""
    program = [sys.executable, "-c", textwrap.dedent(code)]
    answer = subprocess.run([*command, *program], capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_resident_is_what_psutil_reads(resident):
    assert abs(resident.now() - psutil.Process().memory_info().rss) < MIB


def test_a_temporary_inside_one_call_that_holds_the_gil_is_in_the_peak(resident):
    start = resident.read_and_reset()[0]
    len([0] * PEAK_LIST)
    now, peak, intact = resident.read_and_reset()
    assert intact
    assert abs(peak - start - PEAK_LIST * 8) < MIB
    assert now - start < MIB


def test_each_fold_starts_the_mark_anew(resident):
    resident.read_and_reset()
    len([0] * 5_000_000)
    assert resident.read_and_reset()[1] - resident.now() > 30 * MIB
    now, peak, _ = resident.read_and_reset()
    assert peak - now <= resident.traits.error_bytes


def test_a_foreign_reset_is_noticed(resident):
    held = bytearray(b"x") * (50 * MIB)
    resident.read_and_reset()
    held = None  # noqa: F841 - what the mark knew
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    _, peak, intact = resident.read_and_reset()
    assert not intact
    resident.read_and_reset()
    assert resident.read_and_reset()[2]
    assert peak > 0


def test_the_error_bound_is_what_the_kernel_may_keep_back(resident):
    cpus = os.sysconf("SC_NPROCESSORS_ONLN")
    assert resident.traits.error_bytes == peak_error_bytes() == 3 * cpus * max(32, 2 * cpus) * PAGE_BYTES


def test_getrusage_of_a_large_parent_does_not_reach_a_small_child():
    hog = bytearray(b"x") * (150 * MIB)
    found = run(
        """
        import json, resource
        from hiwater.meters.process import ResidentMeter
        meter = ResidentMeter(); meter.open(); meter.read_and_reset()
        now, peak, intact = meter.read_and_reset()
        print(json.dumps([now, peak, intact, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
        """
    )
    del hog
    now, peak, intact, inherited = found
    if inherited < 100 * MIB:
        pytest.skip("this way of starting a process does not hand its parent's maximum on")
    assert intact
    assert peak < 60 * MIB
    assert peak >= now


def test_a_descriptor_that_the_program_closed_is_opened_again(resident):
    before = resident.now()
    os.close(resident._statm._descriptor)
    os.close(resident._clear._descriptor)
    assert abs(resident.now() - before) < MIB
    assert resident.read_and_reset()[2]


def test_a_descriptor_that_became_the_programs_is_neither_written_to_nor_closed(resident, tmp_path):
    path = tmp_path / "precious"
    path.write_text("4141 the program's own 3390")
    mine = os.open(path, os.O_RDWR)
    stolen = [resident._clear._descriptor, resident._statm._descriptor]
    for number in stolen:
        os.dup2(mine, number)
    now, peak, _ = resident.read_and_reset()
    assert MIB < now <= peak
    assert path.read_text() == "4141 the program's own 3390"
    for number in stolen:
        os.fstat(number)  # still open: they are the program's
        os.close(number)
    os.close(mine)


def test_a_forked_child_reads_and_resets_itself(resident):
    hold = bytearray(b"x") * (64 * MIB)
    resident.read_and_reset()
    mark = resident.high_water_mark()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        more = bytearray(b"x") * (100 * MIB)
        now, peak, _ = resident.read_and_reset()
        os.write(writing, json.dumps([now, peak, len(more)]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    now, peak, _ = json.loads(os.read(reading, 1000))
    os.close(reading), os.close(writing)
    assert peak >= now > 150 * MIB
    assert resident.read_and_reset()[1] < mark + 50 * MIB
    assert len(hold)


def test_without_clear_refs_the_peak_is_sampled_and_says_why(tmp_path):
    for name in ("statm", "status"):
        (tmp_path / name).symlink_to(f"/proc/self/{name}")
    meter = opened(ResidentMeter(str(tmp_path)))
    try:
        assert not meter.traits.exact
        assert "clear_refs" in meter.traits.reason
        assert "sampled" in meter.traits.source
        start = meter.read_and_reset()[0]
        held = bytearray(b"x") * (64 * MIB)
        wait_until(lambda: meter._watch.peak() - start > 60 * MIB)
        del held
        assert meter.read_and_reset()[1] - start > 60 * MIB
    finally:
        meter.close()


def test_a_native_sampler_sees_into_a_call_that_holds_the_gil(tmp_path):
    core = pytest.importorskip("hiwater._core")
    if not hasattr(core, "resident_watch_start"):
        pytest.skip("this engine has no sampler")
    for name in ("statm", "status"):
        (tmp_path / name).symlink_to(f"/proc/self/{name}")
    meter = opened(ResidentMeter(str(tmp_path)))
    try:
        start = meter.read_and_reset()[0]
        len([0] * PEAK_LIST)
        assert meter.read_and_reset()[1] - start > 100 * MIB
        assert "native" in meter.traits.source
    finally:
        meter.close()


def test_the_native_sampler_is_away_while_threads_fork_at_once(tmp_path):
    pytest.importorskip("hiwater._core")
    program = f"""
import ctypes, os, threading, time
from hiwater import _core
library = ctypes.CDLL({str(compiled.library("threads"))!r})
_core.resident_watch_start(100_000)
well = []
threads = [threading.Thread(target=lambda: well.append(library.fork_again_and_again(100))) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
held = bytearray(b"x") * (64 << 20)
_core.resident_watch_stop()
until = time.monotonic() + 60  # the kernel shows a thread that was waited for until it has removed it
while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until: time.sleep(0.01)
print(well, _core.resident_watch_peak() > 64 << 20, os.listdir("/proc/self/task") == [str(os.getpid())])
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stdout) == (0, "[100, 100, 100, 100] True True\n"), done.stderr


def test_uss_is_below_pss_and_pss_below_resident():
    uss, pss, resident = (opened(meter()).now() for meter in (Uss, Pss, ResidentMeter))
    assert 0 < uss <= pss <= resident + MIB


def test_a_tree_counts_shared_pages_once():
    shared = mmap.mmap(-1, 64 * MIB)
    shared.write(b"x" * (64 * MIB))
    alone = tree.read().bytes
    pids, reading, writing = [], *os.pipe()
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            shared[:] and os.write(writing, b"r")
            time.sleep(30)
            os._exit(0)
        pids.append(pid)
    for _ in pids:
        os.read(reading, 1)
    together = tree.read()
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    os.close(reading), os.close(writing)
    assert together.processes >= 4
    assert together.by_resident == 0
    assert together.bytes - alone < 64 * MIB * 2  # a sum of RSS would add 64 MiB for each child


def test_a_process_without_readable_pss_is_named_in_the_traits(monkeypatch):
    monkeypatch.setattr(tree, "_pss", lambda pid: None)
    meter = opened(meters.create("tree"))
    now, _, intact = meter.read_and_reset()
    assert now > 0
    assert not intact
    assert "RSS" in meter.traits.reason


def fake_group(folder, **files):
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")
    return folder


def test_a_version_1_group_is_exact_when_its_mark_moved(tmp_path):
    fake_group(
        tmp_path, memory__usage_in_bytes=100, memory__max_usage_in_bytes=500, memory__limit_in_bytes=9223372036854771712
    )
    fake_group(tmp_path, memory__failcnt=3, memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2")
    group = cgroup.MemoryCgroup(1, str(tmp_path))
    assert group.limit() is None
    assert group.events() == {"failcnt": 3, "oom_kill_disable": 0, "under_oom": 0, "oom_kill": 2}
    meter = opened(cgroup.Cgroup(group))
    assert meter.read_and_reset() == (100, 100, False)
    fake_group(tmp_path, memory__max_usage_in_bytes=900)
    assert meter.read_and_reset() == (100, 900, True)
    assert not meter.traits.exact


def test_a_version_2_group(tmp_path):
    fake_group(tmp_path, memory__current=70, memory__max=1000, memory__swap__current=5)
    fake_group(tmp_path, memory__events="low 0\nmax 4\noom_kill 1")
    group = cgroup.MemoryCgroup(2, str(tmp_path))
    assert (group.limit(), group.swap_bytes()) == (1000, 5)
    assert group.events()["max"] == 4
    meter = opened(cgroup.Cgroup(group))  # no memory.peak: an old kernel
    assert meter.read_and_reset() == (70, 70, False)


def test_the_group_is_found_where_the_mount_shows_only_a_part(tmp_path):
    proc, mount = tmp_path / "proc", tmp_path / "cg"
    (proc / "self").mkdir(parents=True), mount.mkdir()
    (proc / "self" / "cgroup").write_text("0::/machine/box/inner\n")
    (proc / "self" / "mountinfo").write_text(f"38 31 0:31 /machine/box {mount} rw - cgroup2 cgroup2 rw\n")
    (mount / "inner").mkdir()
    fake_group(mount / "inner", memory__current=1)
    found = cgroup.find(proc=str(proc))
    assert (found.version, found.folder, found.top) == (2, f"{mount}/inner", str(mount))
    (mount / "inner" / "memory.current").unlink()
    with pytest.raises(MeterUnavailable):
        cgroup.find(proc=str(proc))


def test_the_real_group_where_there_is_one():
    try:
        meter = opened(meters.create("cgroup"))
    except MeterUnavailable as error:
        pytest.skip(str(error))
    now, peak, _ = meter.read_and_reset()
    assert 0 < now <= peak


def test_counters_grow_as_psutil_says(tmp_path):
    start = counters.read()
    process = psutil.Process()
    before = process.memory_info().rss, process.io_counters().write_chars
    pages = bytearray(b"x") * (8 * MIB)
    (tmp_path / "out").write_bytes(pages)
    sum(range(2_000_000))
    used = counters.difference(start, counters.read())
    assert used["minor_page_faults"] >= 8 * MIB / PAGE_BYTES / 2 or before
    assert used["cpu_user_seconds"] > 0
    assert used["io_write_call_bytes"] >= 8 * MIB


def test_tracemalloc_of_the_user_is_left_as_it_was_found():
    tracemalloc.start(5)
    try:
        kept = [bytes(1000) for _ in range(100)]
        meter = opened(meters.create("tracemalloc"))
        meter.read_and_reset()
        meter.close()
        assert tracemalloc.is_tracing()
        assert tracemalloc.get_traceback_limit() == 5
        assert tracemalloc.get_object_traceback(kept[0]) is not None
    finally:
        tracemalloc.stop()
    meter = opened(meters.create("tracemalloc"))
    meter.read_and_reset()
    len([0] * 1_000_000)
    assert meter.read_and_reset()[1] > 7 * MIB
    meter.close()
    assert not tracemalloc.is_tracing()


def test_a_name_that_is_no_meter_lists_those_there_are():
    with pytest.raises(MeterUnavailable, match="resident"):
        meters.create("residnet")


def test_kept_files_take_high_numbers():
    kept = KeptFile("/proc/self/statm")
    assert kept.descriptor() >= 200
    kept.close()


def test_many_threads_may_read_at_once(resident):
    failures = []

    def read():
        try:
            for _ in range(200):
                assert resident.now() > MIB
        except (OSError, AssertionError, ValueError) as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
