"""The capture as a file among others: nobody loses one, and what others do to it does not harm the program."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

import hiwater
from children import run_hiwater
from hiwater.errors import CaptureUnwritable
from recording import needs_engine, record
from waiting_program import SECONDS, WAITS, recording, run

pytestmark = needs_engine


def peak_of(path: Path) -> int:
    return int(hiwater.open(path).peak.bytes.sum())


def test_a_second_recording_of_a_path_leaves_the_first_one_its_capture(tmp_path: Path) -> None:
    with recording(tmp_path, WAITS, "-o", "same.hiw") as first:
        second = run(tmp_path, "-o", "same.hiw", "-c", "raise SystemExit(3)")
        assert second.returncode == 3
        (own,) = set(tmp_path.glob("*.hiw")) - {tmp_path / "same.hiw"}
        assert own.name.startswith("same.")
        assert second.stderr.count("is the capture of another process that is still running") == 1
        assert f"capture {own.name}: read it" in second.stderr
        _, said = first.communicate("\n", timeout=SECONDS)
    assert first.returncode == 7
    assert "capture same.hiw: read it" in said
    assert "warning" not in said
    assert peak_of(tmp_path / "same.hiw") > 10_000_000
    assert hiwater.open(own).process.exit_code == 3
    # The process has ended: its capture is an older one now, and is replaced.
    again = run(tmp_path, "-o", "same.hiw", "-c", "raise SystemExit(4)")
    assert again.returncode == 4
    assert "warning" not in again.stderr
    assert hiwater.open(tmp_path / "same.hiw").process.exit_code == 4
    assert len(list(tmp_path.iterdir())) == 2


WORKERS: Any = None  # a barrier, in a worker


def record_in_worker(path: str) -> str:
    with hiwater.record(path) as recorder:
        kept = bytes(1_000_000)
    del kept
    WORKERS.wait(SECONDS)  # each of them is alive until all have recorded
    return recorder.path


def share(barrier: Any) -> None:
    global WORKERS  # noqa: PLW0603 - what a worker is given at its start, it keeps here
    WORKERS = barrier


@pytest.mark.filterwarnings("ignore:.*is the capture of another process:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_pool_that_record_one_path_have_a_capture_each(tmp_path: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    with context.Pool(4, share, (context.Barrier(4),)) as pool:
        paths = pool.map(record_in_worker, [str(tmp_path / "load.hiw")] * 4, chunksize=1)
    assert len(set(paths)) == 4
    assert str(tmp_path / "load.hiw") in paths
    assert {str(path) for path in tmp_path.iterdir()} == set(paths)
    for path in paths:
        assert 1_000_000 < peak_of(Path(path)) < 2_000_000


def test_a_process_records_one_path_time_after_time(tmp_path: Path) -> None:
    for size in (1_000_000, 3_000_000, 2_000_000):
        with hiwater.record(tmp_path / "a.hiw") as recorder:
            kept = bytes(size)
        del kept
        assert recorder.path == str(tmp_path / "a.hiw")
        assert size < peak_of(tmp_path / "a.hiw") < size + 500_000
    assert list(tmp_path.iterdir()) == [tmp_path / "a.hiw"]


def test_a_reader_of_an_older_capture_keeps_it(tmp_path: Path) -> None:
    with hiwater.record(tmp_path / "a.hiw"):
        pass
    with open(tmp_path / "a.hiw", "rb") as older:
        before = older.read()
        with hiwater.record(tmp_path / "a.hiw") as recorder:
            recorder.snapshot(tmp_path / "b.hiw")
            with open(tmp_path / "b.hiw", "rb") as snapshot:
                first = snapshot.read()
                recorder.snapshot(tmp_path / "b.hiw")
                snapshot.seek(0)
                assert snapshot.read() == first
        older.seek(0)
        assert older.read() == before


def test_a_snapshot_does_not_take_a_capture_that_is_being_written(tmp_path: Path) -> None:
    with recording(tmp_path, WAITS, "-o", "theirs.hiw") as other:
        with hiwater.record(tmp_path / "ours.hiw") as recorder:
            for name in ("ours.hiw", "theirs.hiw"):
                with pytest.raises(CaptureUnwritable, match="still running"):
                    recorder.snapshot(tmp_path / name)
        assert recorder.summary()["stop_reason"] is None
        other.communicate("\n", timeout=SECONDS)
    assert other.returncode == 7
    assert {path.name for path in tmp_path.iterdir()} == {"ours.hiw", "theirs.hiw"}
    assert peak_of(tmp_path / "theirs.hiw") > 10_000_000


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_a_capture_that_is_deleted_meanwhile_is_written_again(tmp_path: Path, quiet: tuple[str, ...]) -> None:
    with recording(tmp_path, WAITS, "-o", "a.hiw", *quiet) as process:
        (tmp_path / "a.hiw").unlink()
        _, said = process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 7
    assert said.count("the capture was deleted or replaced while it was written") == 1
    assert peak_of(tmp_path / "a.hiw") > 10_000_000
    assert hiwater.open(tmp_path / "a.hiw").process.exit_code == 7


def test_a_file_that_took_the_place_of_the_capture_stays(tmp_path: Path) -> None:
    with recording(tmp_path, WAITS, "-o", "a.hiw") as process:
        (tmp_path / "mine").write_text("precious")
        (tmp_path / "mine").rename(tmp_path / "a.hiw")
        _, said = process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 7
    assert (tmp_path / "a.hiw").read_text() == "precious"
    assert f"capture a.{process.pid}.hiw: read it" in said
    assert peak_of(tmp_path / f"a.{process.pid}.hiw") > 10_000_000


def test_a_capture_that_is_moved_meanwhile_is_whole(tmp_path: Path) -> None:
    with recording(tmp_path, WAITS, "-o", "a.hiw") as process:
        (tmp_path / "a.hiw").rename(tmp_path / "b.hiw")
        _, said = process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 7
    assert "the capture was moved while it was written" in said
    assert "capture b.hiw: read it" in said
    assert [path.name for path in tmp_path.iterdir()] == ["b.hiw"]
    assert hiwater.open(tmp_path / "b.hiw").process.exit_code == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for another root folder")
@pytest.mark.parametrize("folder", ["/", "."], ids=["inside", "outside"])
def test_a_program_in_another_root_folder_is_told_the_name_outside(folder: str, tmp_path: Path) -> None:
    (tmp_path / "jail").mkdir()
    source = f"import os; held = bytearray(10**6); os.chroot('jail'); os.chdir({folder!r})"
    done = run_hiwater("run", "-o", "a.hiw", "-c", source, folder=tmp_path)
    assert done.returncode == 0
    assert f"capture {tmp_path}/a.hiw: read it with `hiwater report {tmp_path}/a.hiw`\n" in done.stderr
    assert "has another root folder than at its start: the capture is complete" in done.stderr
    assert [path.name for path in (tmp_path / "jail").iterdir()] == []
    assert peak_of(tmp_path / "a.hiw") > 10**6


def test_a_capture_whose_folder_is_deleted_is_lost_and_the_program_is_not(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with recording(tmp_path, WAITS, "-o", "out/a.hiw") as process:
        (tmp_path / "out" / "a.hiw").unlink()
        (tmp_path / "out").rmdir()
        _, said = process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 7
    assert "the capture was deleted or replaced while it was written, and is lost" in said
    assert "read it with" not in said


def test_a_capture_goes_through_no_link(tmp_path: Path) -> None:
    run(tmp_path, "-q", "-o", "old.hiw", "-c", "pass")
    before = (tmp_path / "old.hiw").read_bytes()
    (tmp_path / "link.hiw").symlink_to("old.hiw")
    (tmp_path / "nowhere.hiw").symlink_to("no/such/file")
    for name in ("link.hiw", "nowhere.hiw"):
        done = run(tmp_path, "-o", name, "-c", "print('ran')")
        assert (done.returncode, done.stdout) == (125, "")
        assert "is a symbolic link" in done.stderr
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "old.hiw").read_bytes() == before
    assert len(os.listdir(tmp_path)) == 3


@pytest.mark.parametrize(("words", "mode"), [((), 0o600), (("--mode", "640"), 0o640), (("--mode=0604",), 0o604)])
def test_a_capture_and_what_is_made_of_it_are_its_owners(tmp_path: Path, words: tuple[str, ...], mode: int) -> None:
    before = os.umask(0)
    try:
        source = "import hiwater, sys"
        assert run(tmp_path, "-q", "-o", "a.hiw", *words, "-c", source).returncode == 0
        with hiwater.record(tmp_path / "b.hiw", mode=mode) as recorder:
            recorder.snapshot()
        run_hiwater("sample", "-q", "-o", "c.hiw", "--", "true", folder=tmp_path, check=True)
        run_hiwater("merge", "-o", "all.hiw", "a.hiw", "b.hiw", folder=tmp_path, check=True)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"a.hiw": mode, "b.hiw": mode, "b.1.hiw": mode, "c.hiw": 0o600, "all.hiw": 0o600}


@pytest.mark.parametrize("mode", ["999", "rw", "77777", "044", "", "-1"])
def test_what_is_no_mode_is_refused(tmp_path: Path, mode: str) -> None:
    done = run(tmp_path, "--mode", mode, "-c", "print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a file mode" in done.stderr


def test_sampling_does_not_take_a_capture_that_is_being_written(tmp_path: Path) -> None:
    with recording(tmp_path, WAITS, "-o", "a.hiw") as process:
        done = run_hiwater("sample", "-o", "a.hiw", "--", "sh", "-c", "exit 5", folder=tmp_path)
        assert "is the capture of a process that is still running" in done.stderr
        process.communicate("\n", timeout=SECONDS)
    assert process.returncode == 7
    assert peak_of(tmp_path / "a.hiw") > 10_000_000


def test_no_argv_leaves_no_text_of_the_command(tmp_path: Path) -> None:
    source = "def work(): return [bytes(1000), 'hush' + 'hush']\nhushed = [work() for _ in range(1000)]  # hush"
    assert run(tmp_path, "-q", "--no-argv", "-o", "a.hiw", "-c", source, "hush").returncode == 0
    content = (tmp_path / "a.hiw").read_bytes()
    assert b"hush" not in content
    assert b"work" in content  # a function's name is in every stack that it is in


def test_a_module_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("import sys; sys.exit(len(sys.argv))")
    assert run(tmp_path, "-q", "-o", "a.hiw", "-m", "tool", "one").returncode == 2
    assert hiwater.open(tmp_path / "a.hiw").process.argv == ("-m", "tool", "one")


HOLE = """\
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
    ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MIB = 1 << 20

def main():
    start = libc.mmap(None, 256 * MIB, 3, 0x22, -1, 0)
    libc.munmap(start + MIB, 254 * MIB)
    kept = []
    for number in range(20_000):  # the recorder's tables grow
        exec(compile("kept.append([None] * 50)", f"file-{number}", "exec"))
    with open("/proc/self/maps") as maps:
        ranges = [line.split() for line in maps]
    captures = [int(one[0].split("-")[0], 16) for one in ranges if one[-1].endswith(".hiw")]
    assert len(captures) > 3 and not [one for one in captures if start <= one < start + 256 * MIB]
"""


def test_the_capture_does_not_grow_into_a_hole_that_the_program_made(tmp_path: Path) -> None:
    """The program may unmap the whole range later, and would take the capture with it."""
    record(tmp_path, HOLE)
