"""`hiwater report` as it is typed: outputs, exit codes, and one clear line for whatever cannot be done."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hiwater.errors
from capture_builder import FIRST_EXTENT_OFFSET, HEADER_BYTES, Recording
from example_captures import small
from hiwater.cli import main, report
from hiwater.cli.output import BINARY

FORMATS = tuple(name for name in report.FORMATS if name not in BINARY)  # those: test_exports.py, test_plot.py
PROGRAM = "import sys; from hiwater.cli import main; sys.exit(main(['report', *sys.argv[1:]]))"


def typed(*arguments: str | Path) -> int:
    """Exit code of `hiwater report ARGUMENTS`."""
    try:
        return main(["report", *map(str, arguments)])
    except SystemExit as end:
        assert isinstance(end.code, int)
        return end.code


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "run.hiw"
    path.write_bytes(small().to_bytes(shuffle=2))
    return path


@pytest.mark.parametrize("output_format", FORMATS)
def test_every_format_to_stdout_and_to_a_file(
    capture: Path, output_format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert typed(capture, "--format", output_format, "-o", "-") == 0
    shown = capfd.readouterr()
    assert shown.err == "" and shown.out
    out = capture.parent / "out"
    assert typed(capture, "--format", output_format, "-o", out) == 0
    assert out.read_text("utf-8") == shown.out
    assert capfd.readouterr().out == ""
    assert sorted(capture.parent.iterdir()) == sorted([capture, out])


@pytest.mark.parametrize(
    ("at", "sizes"),
    [("peak", [4096, 1000, 500]), ("end", [4096, 500]), ("0", [4096, 1000, 500]), ("0:0.001", [4096, 1000, 500])],
)
def test_any_moment(capture: Path, at: str, sizes: list[int], capfd: pytest.CaptureFixture[str]) -> None:
    assert typed(capture, "--format", "json", "--at", at) == 0
    assert [stack["bytes"] for stack in json.loads(capfd.readouterr().out)["stacks"]] == sizes


@pytest.mark.parametrize(
    "arguments",
    [
        ("--at", "later"), ("--at", "-1"), ("--at", "1:2:3"), ("--at", "5:1"), ("--at", "99"), ("--kind", "file"),
        ("--by", "class"),
        ("--format", "docx"), ("--top", "0"), ("--top", "many"), ("--nonsense",),
    ],
)  # fmt: skip
def test_a_wrong_request_is_2(capture: Path, arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert typed(capture, *arguments) == 2
    shown = capfd.readouterr()
    assert shown.out == "" and "Traceback" not in shown.err and shown.err


def one_line(capfd: pytest.CaptureFixture[str]) -> str:
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1 and shown.err.startswith("hiwater: ")
    return shown.err


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--format", "docx"), "unknown format 'docx'; choose one of text"),
        (("--format", "json", "--format", "csv"), "given 2 times (json, csv)"),
        (("--html", "--tree"), "given 2 times (html, tree)"),
        (("--full", "--tree"), "--full is for text, and not for tree"),
        (("--html", "--open", "-o", "-"), "--open needs a file"),
    ],
)
def test_formats_that_cannot_be_are_one_line(
    capture: Path, asked: tuple[str, ...], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert typed(capture, *asked) == 2
    assert words in one_line(capfd)


def test_captures_that_cannot_be_read_are_one_line_and_2(capture: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole, folder = capture.read_bytes(), capture.parent
    for name, content, words in (
        ("cut", whole[: FIRST_EXTENT_OFFSET + 100], "truncated"),
        ("foreign", b"PK\x03\x04 nothing of ours", "not a capture"),
        ("empty", b"", "empty"),
        ("newer", whole[:8] + b"\x09" + whole[9:], "version 9"),
        ("corrupt", whole[:HEADER_BYTES] + b"!" + whole[HEADER_BYTES + 1 :], "damaged"),
    ):
        (folder / name).write_bytes(content)
        assert typed(folder / name) == 2
        assert words in one_line(capfd) or pytest.fail(name)
    assert typed(folder / "missing") == 2
    assert "there is no capture" in one_line(capfd)
    (folder / "none").mkdir()
    assert typed(folder / "none") == 2
    assert "there is no capture in" in one_line(capfd)


def test_a_name_with_newlines_is_still_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert typed(tmp_path / "a\nb\x1b[31m") == 2
    assert "\x1b" not in one_line(capfd)


def test_a_capture_that_contradicts_itself_is_shown_with_a_warning(
    capture: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recording = small()
    recording.header["live_bytes"] += 8
    capture.write_bytes(recording.to_bytes())
    assert typed(capture, "--format", "json") == 0
    shown = capfd.readouterr()
    assert "contradicts itself" in shown.err and len(json.loads(shown.out)["problems"]) == 1


def test_less_than_nothing_is_refused(capture: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recording = small()
    next(account for account in recording.accounts.values() if account.live[0]).live[0] = -5
    capture.write_bytes(recording.to_bytes())
    assert typed(capture, "--at", "end") == 2
    assert "-5 bytes" in one_line(capfd)


def test_several_captures(capture: Path, capfd: pytest.CaptureFixture[str]) -> None:
    child = small()
    child.header["pid"] = 77
    child.fact("ppid", "4242")
    (capture.parent / "child.hiw").write_bytes(child.to_bytes())
    assert typed(capture, capture.parent / "child.hiw") == 0
    assert capfd.readouterr().out.count("\nYour lines") == 1
    assert typed(capture, capture.parent / "child.hiw", "--full") == 0
    assert capfd.readouterr().out.count("\nYour lines") == 2
    assert typed(capture, capture.parent / "child.hiw", "--format", "json") == 0
    assert json.loads(capfd.readouterr().out)["children"][0]["process"]["pid"] == 77
    assert typed(capture, capture.parent / "child.hiw", "--format", "svg") == 2
    assert "one capture" in one_line(capfd)


# Where it goes


@pytest.mark.parametrize(
    ("words", "suffix"),
    [
        (("--format", "svg"), ".svg"),
        (("--html",), ".html"),
        (("--format", "speedscope"), ".speedscope.json"),
    ],
)
def test_formats_for_other_programs_go_beside_the_capture(
    capture: Path, words: tuple[str, ...], suffix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert typed(capture, *words) == 0
    made = capture.with_suffix(suffix)
    assert capfd.readouterr().out == f"{made}\n" and made.stat().st_size > 100
    merged = capture.parent / "all.hiw"
    assert main(["merge", "-o", str(merged), str(capture)]) == 0
    name = hiwater.open_run(merged).captures[0].path
    assert typed(name, *words) == 0
    assert capfd.readouterr().out.endswith(f"{merged.parent / 'all'}.{name.name}{suffix}\n")


@pytest.mark.parametrize("words", [(), ("--at", "end"), ("--by", "function"), ("--kind", "python")])
def test_the_report_is_forty_lines_at_most(
    capture: Path, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    recording = small()
    for number in range(60):
        recording.allocate(recording.path(("work", f"/app/file_{number}.py", number + 1)), 5000 - number)
    recording.header.update(lost_events=3, live_bytes=1, stop_reason=recording.string("the disk is full"))
    capture.write_bytes(recording.to_bytes())
    assert typed(capture, *words) == 0
    assert 15 < capfd.readouterr().out.count("\n") <= 40


def test_a_report_never_replaces_its_capture(capture: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = capture.read_bytes()
    (capture.parent / "link").symlink_to(capture)
    for output in (capture, capture.parent / "link"):
        assert typed(capture, "-o", output) == 2
        assert "would replace the capture" in one_line(capfd)
    assert capture.read_bytes() == before


def test_a_folder_that_is_not_there_is_125(capture: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert typed(capture, "-o", capture.parent / "no/such/out") == 125
    assert "cannot be written" in one_line(capfd)


def test_a_full_disk_is_125(capture: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert typed(capture, "-o", "/dev/full") == 125
    assert "make room" in one_line(capfd)


def test_what_was_there_stays_when_writing_fails(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = capture.parent / "out"
    out.write_text("yesterday's")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hiwater.report.text.overview.write", fail)
    assert typed(capture, "-o", out) == 125
    assert out.read_text() == "yesterday's"
    assert sorted(path.name for path in capture.parent.iterdir()) == ["out", "run.hiw"]


def environment(**more: str) -> dict[str, str]:
    """For a process of its own that is to find the hiwater under test."""
    return {**os.environ, "PYTHONPATH": str(Path(hiwater.errors.__file__).parent.parent), **more}


def test_a_reader_that_stops_is_no_fault(capture: Path) -> None:
    recording = Recording()
    root = recording.thread()
    for number in range(30_000):
        recording.allocate(recording.node(root, recording.code(f"function_{number}", "a.py", 1), 5), 10)
    capture.write_bytes(recording.to_bytes())
    for output_format in ("json", "collapsed", "tree"):
        command = f'"{sys.executable}" -c "{PROGRAM}" "{capture}" --format {output_format} | head -c 10'
        shell = ["bash", "-o", "pipefail", "-c", command]
        done = subprocess.run(shell, env=environment(), capture_output=True, check=False)
        assert done.stderr == b"" and done.returncode in (0, 141)


EACH_FORMAT = """
import sys
from hiwater.cli import main
for name in sys.argv[2:]:
    assert main(["report", sys.argv[1], "--format", name, "-o", "-"]) == 0
    print("--- the end of it", flush=True)
"""


def test_a_terminal_that_knows_ascii_only(capture: Path) -> None:
    """One process writes all formats."""
    recording = small()
    recording.allocate(recording.path(("naïve 😀", "/é.py", 2)), 9)
    recording.fact("program", "naïve.py")
    capture.write_bytes(recording.to_bytes())
    command = [sys.executable, "-c", EACH_FORMAT, str(capture), *FORMATS]
    plain = environment(PYTHONIOENCODING="ascii:strict", NO_COLOR="1")
    done = subprocess.run(command, env=plain, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = done.stdout.split(b"--- the end of it\n")[:-1]
    assert len(shown) == len(FORMATS)
    for name, text in zip(FORMATS, shown, strict=True):
        assert text and (text.isascii() or name in ("collapsed", "svg", "html", "csv")), name


def test_help_loads_neither_numpy_nor_rich() -> None:
    code = "import sys; from hiwater.cli import report; assert not {'numpy', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


def test_errors_are_one_tree_with_slugs_and_remedies() -> None:
    kinds = [
        kind
        for kind in vars(hiwater.errors).values()
        if isinstance(kind, type) and issubclass(kind, hiwater.errors.HiwaterError)
    ]
    slugs = [kind.slug for kind in kinds]
    assert len(slugs) == len(set(slugs)) >= 9
    assert str(hiwater.errors.HiwaterError("this is wrong", "do that")) == "this is wrong; do that"


def test_views_write_to_any_text_stream(capture: Path) -> None:
    from hiwater.report.export import json_report
    from hiwater.report.request import Report

    opened, stream = hiwater.open(capture), io.StringIO()
    json_report.write([Report(opened, opened.peak)], stream)
    assert json.loads(stream.getvalue())["peak"]["blocks"] == 3
