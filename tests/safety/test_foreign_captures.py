"""Captures that came from elsewhere: they name files, and no report, page or view quotes, follows or waits for what
they name."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from capture_builder import Recording
from hiwater import capture as captures
from hiwater import cli
from hiwater._os import cgroup_files
from hiwater._os.process_identity import current_boot_id
from hiwater.capture import limits
from hiwater.errors import MeterUnavailable
from messages import messages_to
from page_reader import Page

SECRET = "the_secret_of_this_machine"
VIEWS = (
    ["report"], ["report", "--full"], ["report", "--full", "--stacks"], ["report", "--format=markdown"],
    ["report", "--format=lines"],
    ["report", "--format=lines", "--source=all"], ["report", "--format=html", "--source=all", "-o-"],
    ["report", "--format=json"], ["live", "--once"], ["leaks"],
)  # fmt: skip

WITHOUT_SOURCE = (["report", "--format=json"], ["leaks"])  # of these captures


def naming(file: str | Path, folder: str | Path = "/nowhere", **facts: str) -> Recording:
    """A recording with memory at the first line of `file`."""
    recording = Recording()
    for key, value in {"cwd": str(folder), **facts}.items():
        recording.fact(key, value)
    recording.header["started_unix_ns"] = 4 * 10**18  # no file is newer
    recording.allocate(recording.path(("f", str(file), 1)), 5 << 20)
    recording.sample(9 << 20)
    recording.end()
    return recording


def shown(capture: Path, *words: str) -> str:
    out, told = io.StringIO(), io.StringIO()
    out.buffer = io.BytesIO()  # type: ignore[misc]
    with contextlib.redirect_stdout(out), messages_to(told):
        code = cli.main([words[0], str(capture), *words[1:]])
    assert code in (0, 1, 2) and "Traceback" not in told.getvalue()
    said = out.getvalue() + out.buffer.getvalue().decode()
    return (
        json.dumps(Page(said).unpacked.head, ensure_ascii=False) if "--format=html" in words else said
    ) + told.getvalue()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def a_file_outside(there: Path, here: Path) -> Path:
    (there / "outside.py").write_text(f"{SECRET} = 1\n")
    return there / "outside.py"


def no_python(there: Path, here: Path) -> Path:
    (here / ".git").mkdir()
    (here / ".git" / "config").write_text(f"url = https://{SECRET}@example.org\n")
    return here / ".git" / "config"


def a_link_named_as_python(there: Path, here: Path) -> Path:
    (here / "config").write_text(SECRET)
    (here / "linked.py").symlink_to(here / "config")
    return here / "linked.py"


def a_link_to_outside(there: Path, here: Path) -> Path:
    (here / "linked.py").symlink_to(a_file_outside(there, here))
    return here / "linked.py"


def a_linked_folder(there: Path, here: Path) -> Path:
    (here / "folder").symlink_to(there)
    return here / "folder" / a_file_outside(there, here).name


def a_way_out(there: Path, here: Path) -> Path:
    return here / ".." / a_file_outside(there, here).name


def an_environment(there: Path, here: Path) -> Path:
    return Path("/proc/self/environ")


def a_fifo(there: Path, here: Path) -> Path:
    os.mkfifo(here / "pipe.py")
    return here / "pipe.py"


@pytest.mark.parametrize(
    "make",
    [
        a_file_outside,
        no_python,
        a_link_named_as_python,
        a_link_to_outside,
        a_linked_folder,
        a_way_out,
        an_environment,
        a_fifo,
    ],
)
def test_no_output_quotes_what_is_not_the_readers_python(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, Path], Path]
) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    capture = tmp_path / "run.hiw"
    capture.write_bytes(naming(make(tmp_path, here)).to_bytes())
    for words in VIEWS:
        assert SECRET not in shown(capture, *words), words


def test_a_folder_of_another_user_is_not_the_readers(
    tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = tmp_path / "run.hiw"
    capture.write_bytes(naming(a_file_outside(tmp_path, here), folder=tmp_path).to_bytes())
    assert SECRET in shown(capture, "report")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert SECRET not in shown(capture, "report")


def test_the_root_of_all_files_is_no_folder_of_a_recording(tmp_path: Path, here: Path) -> None:
    capture = tmp_path / "run.hiw"
    capture.write_bytes(naming(a_file_outside(tmp_path, here), folder="/").to_bytes())
    assert SECRET not in shown(capture, "report")


@pytest.mark.parametrize("words", [words for words in VIEWS if words not in WITHOUT_SOURCE], ids=" ".join)
def test_every_output_quotes_the_readers_own_python_by_the_same_rule(
    tmp_path: Path, here: Path, words: list[str]
) -> None:
    """A file below the current folder, one below the recorded one, and a script by its first line."""
    (here / "own.py").write_text("kept = below_the_current_folder()\n")
    (here / "tool").write_text("#!/usr/bin/env python3\n")
    (tmp_path / "recorded").mkdir()
    (tmp_path / "recorded" / "own.py").write_text("kept = below_the_recorded_folder()\n")
    capture = tmp_path / "run.hiw"
    for file, text in {
        here / "own.py": "below_the_current_folder()", tmp_path / "recorded" / "own.py": "below_the_recorded_folder()",
        here / "tool": "/usr/bin/env python3",
    }.items():  # fmt: skip
        capture.write_bytes(naming(file, folder=tmp_path / "recorded").to_bytes())
        assert text in shown(capture, *words), file


def test_a_folder_with_a_long_name_takes_no_time(tmp_path: Path, here: Path) -> None:
    capture = tmp_path / "run.hiw"
    capture.write_bytes(
        naming("a.py", folder="/a" * 500_000, cgroup_events="/a" * 500_000 + "/memory.events").to_bytes()
    )
    begun = time.process_time()
    shown(capture, "report", "--format=lines")
    assert time.process_time() - begun < 3


def test_source_of_installed_packages_is_quoted(tmp_path: Path, here: Path) -> None:
    capture = tmp_path / "run.hiw"
    capture.write_bytes(naming(json.__file__).to_bytes())
    assert "JSON (JavaScript Object Notation)" in shown(capture, "report", "--format=lines", "--source=all")


def test_a_report_says_where_it_would_show_the_source(tmp_path: Path, here: Path) -> None:
    capture, outside = tmp_path / "run.hiw", a_file_outside(tmp_path, here)
    capture.write_bytes(naming(outside).to_bytes())
    for words in (["report"], ["report", "--format=lines"]):
        assert "source is shown of files below the current folder: change to that of" in shown(capture, *words)


@pytest.mark.parametrize("content", ["oom_kill 99\n", "oom_kill many\n", "oom_kill " + "9" * 5000])
def test_a_file_of_events_is_read_of_a_cgroup_alone(tmp_path: Path, content: str) -> None:
    events = tmp_path / "memory.events"
    events.write_text(content)
    capture = tmp_path / "run.hiw"
    for path in (str(events), "/dev/zero", "/proc/self/environ", "/sys/fs/cgroup/../../../" + str(events)):
        recording = naming("a.py", cgroup_events=path, oom_kills="0")
        recording.header["boot_id"] = current_boot_id().encode()
        capture.write_bytes(recording.to_bytes())
        assert limits.kills_since(captures.open(capture).tables) == 0


def test_the_file_of_events_of_this_process_is_one(tmp_path: Path) -> None:
    try:
        group = cgroup_files.find()
    except MeterUnavailable:
        pytest.skip("no memory cgroup can be read here")
    assert cgroup_files.is_events_file(os.path.realpath(group.events_file))


@pytest.mark.parametrize("what", ["link", "fifo", "folder"])
def test_a_folder_of_children_leads_nowhere(tmp_path: Path, what: str) -> None:
    """Neither its index nor the capture of a child is followed or waited for; what is sound is shown, and the rest
    is named."""
    capture, folder = tmp_path / "run.hiw", tmp_path / "run.hiw.d"
    capture.write_bytes(naming("a.py", run_id="x").to_bytes())
    (tmp_path / "other.hiw").write_bytes(naming("other.py", run_id="x").to_bytes())
    folder.mkdir()
    for name in ("1-2.hiw", "index.jsonl"):
        if what == "link":
            (folder / name).symlink_to(tmp_path / "other.hiw")
        elif what == "fifo":
            os.mkfifo(folder / name)
        else:
            (folder / name).mkdir()
    for words in (["report"], ["live", "--once"], ["check", "--peak", "1GiB"]):
        said = shown(capture, *words)
        assert "other.py" not in said and said
    assert "1-2.hiw" in shown(capture, "report")


def test_a_link_in_the_place_of_the_folder_of_children_is_not_followed(tmp_path: Path) -> None:
    capture = tmp_path / "run.hiw"
    capture.write_bytes(naming("a.py", run_id="x").to_bytes())
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "1-2.hiw").write_bytes(naming("other.py", run_id="x").to_bytes())
    (tmp_path / "run.hiw.d").symlink_to(tmp_path / "there")
    assert "other.py" not in shown(capture, "report")
