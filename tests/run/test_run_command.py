"""`hiwater run` as a command: its options, its settings, its last lines, and what it answers to bad input.

Where the engine must fail to order, engine_double.py stands in for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from children import run_hiwater
from hiwater import open as open_capture
from hiwater._os import destination
from hiwater._os.settings import Settings
from hiwater.cli import run_arguments
from hiwater.errors import CaptureUnwritable, UsageError
from places import HELPERS
from recording import child_environment, needs_engine

DOUBLE = str(HELPERS / "engine_double.py")
MAGIC = b"\x89HIW\r\n\x1a\n"


def hiwater(
    folder: Path, *words: str, mode: str = "works", environment: dict[str, str] | None = None, feed: bytes = b""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, DOUBLE, mode, *words],
        cwd=folder,
        input=feed.decode(),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
        timeout=300,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The single line that a refusal is, with a remedy after the semicolon."""
    assert done.stdout == ""
    assert done.stderr.startswith("hiwater: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "; " in done.stderr
    return done.stderr


def test_a_run_ends_with_three_lines(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "run", "-o", "a.hiw", "-c", "print('out')")
    assert (done.returncode, done.stdout) == (0, "out\n")
    assert done.stderr.splitlines() == [
        (
            "hiwater: peak 1.2 GiB allocated (exact, 12,345 blocks), 1.3 GiB resident (within 4.00 KiB) and 95.4 "
            "MiB overhead of hiwater"
        ),
        "hiwater: 1.2 GiB allocated at the peak; most at /project/etl.py:42 in load: 762.9 MiB (61.5 %)",
        "hiwater: capture a.hiw: read it with `hiwater report a.hiw`",
    ]


def test_losses_and_inexact_figures_are_said(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "run", "-o", "a.hiw", "-c", "pass", mode="lost")
    assert "not exact: events were lost, 12,345 blocks" in done.stderr
    assert "resident (at least)" in done.stderr
    assert "7 events were lost" in done.stderr
    assert "hiwater: warning: 7 events" in hiwater(tmp_path, "run", "-q", "-c", "pass", mode="lost").stderr


def test_quiet_says_nothing_and_the_exit_code_is_recorded(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "run", "-q", "-o", "a.hiw", "-c", "raise SystemExit(3)")
    assert (done.returncode, done.stderr) == (3, "")
    assert (tmp_path / "a.hiw").read_bytes().endswith(b"exit_code=3")


def test_the_default_name_tells_the_program_and_the_process(tmp_path: Path) -> None:
    (tmp_path / "my job.py").write_text("import os; print(os.getpid())")
    done = hiwater(tmp_path, "run", "my job.py")
    assert [path.name for path in tmp_path.glob("*.hiw")] == [f"hiwater-my_job.{done.stdout.strip()}.hiw"]


def test_the_capture_is_where_it_was_asked_for_though_the_program_moves(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "run", "-o", "a.hiw", "-c", "import os; os.chdir('/')")
    assert (tmp_path / "a.hiw").exists()
    assert f"hiwater report {tmp_path / 'a.hiw'}" in done.stderr


def test_arguments_can_be_left_out_of_the_capture(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    hiwater(tmp_path, "run", "-o", "with.hiw", "program.py", "--token", "secret")
    hiwater(tmp_path, "run", "-o", "without.hiw", "--no-argv", "program.py", "--token", "secret")
    assert b"secret" in (tmp_path / "with.hiw").read_bytes()
    assert b"secret" not in (tmp_path / "without.hiw").read_bytes()


@needs_engine
@pytest.mark.parametrize("options", [(), ("--no-argv",)])
def test_what_is_left_out_of_the_capture_is_left_out_of_those_of_children(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """The text of `-c` always is, whichever way it was given."""
    (tmp_path / "child.py").write_text("import sys\nsys.exit(len(sys.argv))")
    (tmp_path / "program.py").write_text(
        """
import subprocess, sys
text = 'kept = "my-text"; import subprocess, sys; subprocess.run([sys.executable, "child.py", "my-argument"])'
subprocess.run([sys.executable, "-c", text, "my-word", ""])
subprocess.run([sys.executable, "-c" + text])
"""
    )
    run_hiwater("run", "-q", *options, "-o", "run.hiw", "program.py", folder=tmp_path, check=True)
    found = [open_capture(path) for path in (tmp_path / "run.hiw.d").glob("*.hiw")]
    content = b"".join(one.path.read_bytes() for one in found)
    assert len(found) == 4 and b"my-text" not in content
    arguments = sorted(one.process.argv[1:] for one in found)
    child = ("child.py", "my-argument")
    assert arguments == ([()] * 4 if options else [("-c",), ("-c", "my-word", ""), child, child])


def test_the_environment_is_never_stored(tmp_path: Path) -> None:
    hiwater(tmp_path, "run", "-o", "a.hiw", "-c", "pass", environment={"API_TOKEN": "very-secret"})
    assert b"very-secret" not in (tmp_path / "a.hiw").read_bytes()


def test_an_engine_that_cannot_work_leaves_the_program_alone(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "run", "-o", "a.hiw", "-c", "print('ran'); raise SystemExit(4)", mode="fault")
    assert (done.returncode, done.stdout) == (4, "ran\n")
    assert done.stderr.startswith("hiwater: warning: the program runs unrecorded: this loader is not glibc's")
    assert done.stderr.count("\n") == 1


def test_a_fault_at_the_end_does_not_change_the_ending(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "run", "-o", "a.hiw", "-c", "print('ran')", mode="stop-fails")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "warning: the program has ended, but the recording is not complete" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.once
def test_a_full_disk_is_said_before_the_program_runs(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "run", "-o", "a.hiw", "-c", "print('ran')", mode="no-space")
    assert done.returncode == 125
    assert "No space left on device" in one_line(done)


NAMED = "import sys\nprint(sys.argv, sys.path[0], __file__, sys.orig_argv[-3:])\n"
# as pip writes it for an interpreter with a long path
LONG = "#!/bin/sh\n'''exec' \"/opt/python/bin/python3\" \"$0\" \"$@\"\n' '''\n"


@needs_engine
@pytest.mark.parametrize("start", ["#!/usr/bin/env python3\n", LONG], ids=["short", "long"])
def test_a_program_on_path_runs_as_its_file(tmp_path: Path, start: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "tool").write_text(start + NAMED)
    (folder / "tool").chmod(0o755)
    environment = child_environment({"PATH": f"{tmp_path}/none:{folder}:{os.environ['PATH']}"})
    plain = subprocess.run(
        [sys.executable, folder / "tool", "-o", "x"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    done = run_hiwater("run", "-q", "-o", "a.hiw", "tool", "-o", "x", folder=tmp_path, environment=environment)
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    (tmp_path / "tool").write_text("print('the file')")
    done = run_hiwater("run", "-q", "-o", "a.hiw", "tool", folder=tmp_path, environment=environment)
    assert done.stdout == "the file\n"


def test_a_program_on_path_that_is_not_pythons_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "script").write_text("#!/bin/sh\necho no\n")
    (tmp_path / "bin" / "script").chmod(0o755)
    (tmp_path / "bin" / "data").write_text("#!/usr/bin/env python3\nprint()\n")  # which nobody may execute
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    for word, code, reason in (
        ("script", 126, "not a Python program"), ("ls", 126, "not a Python program"),
        ("data", 127, "no program of this name"),
    ):  # fmt: skip
        done = hiwater(tmp_path, "run", word, environment=environment)
        assert done.returncode == code and reason in one_line(done)


def test_a_forked_child_says_nothing_of_its_own(tmp_path: Path) -> None:
    source = "import os\nif os.fork() == 0: raise SystemExit(0)\nos.wait()"
    done = hiwater(tmp_path, "run", "-o", "a.hiw", "-c", source)
    assert done.stderr.count("hiwater:") == 3


def test_a_program_that_closed_its_stderr_ends_as_it_should(tmp_path: Path) -> None:
    for source in ("import sys; sys.stderr.close()", "import os; os.close(2)", "import sys; sys.stderr = None"):
        assert hiwater(tmp_path, "run", "-o", "a.hiw", "-c", source).returncode == 0


@pytest.mark.once
@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["missing.py"], 127, "there is no file 'missing.py'"),
        (["-m", "no_such_module"], 127, "No module named no_such_module"),
        (["-m", "package"], 126, "'package' is a package and cannot be directly executed"),
        (["empty"], 126, "can't find '__main__' module"),
        (["binary"], 126, "not Python source: it contains null bytes; hiwater runs only Python programs"),
        ([sys.executable, "good.py"], 126, "it contains null bytes; leave it out: hiwater runs the program after it"),
        pytest.param(
            ["latin.py"],
            126,
            "not Python source in UTF-8",
            marks=pytest.mark.skipif(sys.version_info >= (3, 14), reason="compile() tells it as the interpreter does"),
        ),
        (["stale.pyc"], 126, "compiled by another version"),
        (["--wrong", "x.py"], 2, "unknown option '--wrong'"),
        (["-x", "x.py"], 2, "unknown option '-x'"),
        (["--sample", "64Kib8", "x.py"], 2, "'64Kib8' is not a size"),
        (["--sample-seed", "one", "x.py"], 2, "is not a number"),
        (["--samples", "64KiB", "x.py"], 2, "unknown option '--samples'"),
        ([], 2, "there is no program to run"),
        (["-o"], 2, "-o needs a value"),
        (["-m"], 2, "-m needs something after it"),
        (["--format", "yaml", "x.py"], 2, "unknown format 'yaml'"),
        (["--open", "--format", "text", "x.py"], 2, "--open needs a report that is a file"),
        (["-o", "no/such/folder/a.hiw", "good.py"], 125, "there is no folder"),
        (["-o", "good.py", "good.py"], 125, "exists and is not a capture"),
        (["-o", "empty", "good.py"], 125, "is not a file"),
        (["-o", "%z.hiw", "good.py"], 125, "%z means nothing"),
    ],
)
def test_bad_input_gets_one_line_and_its_exit_code(tmp_path: Path, words: list[str], code: int, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "latin.py").write_bytes("name = 'caf\xe9'\n".encode("latin-1"))
    (tmp_path / "stale.pyc").write_bytes(b"\x01\x02\r\n" + bytes(12))
    (tmp_path / "good.py").write_text("print('ran')")
    done = hiwater(tmp_path, "run", *words)
    assert done.returncode == code
    assert reason in one_line(done)
    assert not list(tmp_path.glob("*.hiw")), "a capture was left of a program that never ran"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write and read everything")
def test_folders_and_files_that_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    (tmp_path / "secret.py").write_text("")
    (tmp_path / "secret.py").chmod(0)
    assert "is not writable" in one_line(hiwater(tmp_path, "run", "-o", "closed/a.hiw", "-c", "pass"))
    assert "cannot be read" in one_line(hiwater(tmp_path, "run", "secret.py"))


def test_an_older_capture_and_an_empty_file_are_overwritten(tmp_path: Path) -> None:
    for content in (MAGIC + b"old", b""):
        (tmp_path / "a.hiw").write_bytes(content)
        assert hiwater(tmp_path, "run", "-q", "-o", "a.hiw", "-c", "pass").returncode == 0
        assert b"exit_code=0" in (tmp_path / "a.hiw").read_bytes()


def test_a_script_with_a_fault_in_its_syntax_is_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f(:\n")
    done = hiwater(tmp_path, "run", "bad.py")
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert not list(tmp_path.glob("*.hiw"))


@pytest.mark.once
def test_help_goes_to_stdout_with_examples(tmp_path: Path) -> None:
    done = hiwater(tmp_path, "run", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "examples:" in done.stdout
    assert hiwater(tmp_path, "--help").returncode == 0
    assert hiwater(tmp_path).returncode == 2


@pytest.mark.once
def test_colour_only_where_it_is_wanted(tmp_path: Path) -> None:
    assert "\x1b[" in hiwater(tmp_path, "run", "-c", "pass", environment={"FORCE_COLOR": "1"}).stderr
    assert (
        "\x1b[" not in hiwater(tmp_path, "run", "-c", "pass", environment={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stderr
    )


@pytest.fixture
def engine() -> None:
    pytest.importorskip("hiwater._core", reason="built without the engine")


def really(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run with the engine that is installed."""
    return run_hiwater("run", "-o", "a.hiw", *words, folder=folder)


@pytest.mark.once
def test_a_report_can_be_had_at_once(engine: None, tmp_path: Path) -> None:
    done = really(tmp_path, "--format", "text", "-c", "held = bytearray(50_000_000); print('out')")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out\n")
    assert "47.7 MiB" in done.stdout
    for name in ("json", "collapsed", "svg", "html"):
        done = really(tmp_path, "--format", name, "-c", "held = bytearray(50_000_000); raise SystemExit(3)")
        assert (done.returncode, done.stdout) == (3, "")
        assert (tmp_path / f"a.{name}").stat().st_size > 20


def test_a_report_at_once_does_not_meet_what_the_program_left(engine: None, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    for name in ("json", "numpy"):
        (tmp_path / "here" / f"{name}.py").write_text("raise RuntimeError('imported by hiwater')")
    program = "import sys, io; sys.stdout = io.StringIO(); held = bytearray(50_000_000)"
    (tmp_path / "here" / "program.py").write_text(program)
    done = really(tmp_path, "--format", "text", "here/program.py")
    assert "warning" not in done.stderr
    assert "47.7 MiB" in done.stdout


def test_what_a_recording_finds_is_the_programs_own(engine: None, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("def hold():\n    return bytearray(50_000_000)\nheld = hold()\n")
    lines = really(tmp_path, "program.py").stderr.splitlines()
    assert lines[0].startswith(("hiwater: peak 47.", "hiwater: peak 48."))
    assert re.match(
        r"hiwater: 4[78]\.\d MiB allocated at the peak; most at program.py:2 in hold: 47.7 MiB \([\d.]+ %\)$", lines[1]
    )


def test_a_recording_does_not_touch_what_the_program_did_not(engine: None, tmp_path: Path) -> None:
    source = "import mmap; held = mmap.mmap(-1, 300 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)"
    first = really(tmp_path, "-c", source).stderr.splitlines()[0]
    resident = float(first.rpartition("blocks), ")[2].split()[0])
    assert re.search(r" 300\.[01] MiB allocated ", first), first  # the import system has a list of the folders' files
    assert resident < 60, first


def parse(
    *words: str, environment: dict[str, str] | None = None, folder: str | None = None
) -> run_arguments.RunArguments:
    return run_arguments.parse(words, Settings(environment or {}, folder))


def test_everything_after_the_program_is_the_programs_own() -> None:
    parsed = parse("-o", "x", "a.py", "-o", "y", "--help", "--", "-m")
    assert (parsed.output, parsed.program, parsed.arguments) == ("x", "a.py", ["-o", "y", "--help", "--", "-m"])
    assert parse("-m", "pkg", "-q").arguments == ["-q"]
    assert parse("-mpkg").program == "pkg"
    assert (parse("-cpass", "-c").kind, parse("-c", "").program) == ("command", "")
    assert parse("--", "-odd.py").program == "-odd.py"
    assert parse("-ox.hiw", "-").output == "x.hiw"
    assert parse("--output=x.hiw", "-").output == "x.hiw"


@pytest.mark.once
def test_the_command_line_comes_before_the_environment_and_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.hiwater]\noutput = "file.hiw"\nargv = false\nquiet = true\n')
    inner = tmp_path / "deep" / "er"
    inner.mkdir(parents=True)
    folder = str(inner)
    assert parse("a.py", folder=folder).output == "file.hiw"
    assert parse("a.py", folder=folder).argv is False
    assert parse("a.py", folder=folder, environment={"HIWATER_OUTPUT": "env.hiw"}).output == "env.hiw"
    assert parse("a.py", folder=folder, environment={"HIWATER_ARGV": "1"}).argv is True
    assert (
        parse("-o", "line.hiw", "a.py", folder=folder, environment={"HIWATER_OUTPUT": "env.hiw"}).output == "line.hiw"
    )


@pytest.mark.once
def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="quiet"):
        parse("a.py", environment={"HIWATER_QUIET": "perhaps"})
    (tmp_path / "pyproject.toml").write_text("[tool.hiwater]\noutput = 3\n")
    with pytest.raises(UsageError, match="output"):
        parse("a.py", folder=str(tmp_path))
    (tmp_path / "pyproject.toml").write_text("[tool.hiwater]\noutput = \n")
    with pytest.raises(UsageError, match="cannot be read"):
        parse("a.py", folder=str(tmp_path))


def test_a_project_that_only_mentions_the_table_has_no_settings(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n# [tool.hiwater] is for later\n")
    assert parse("a.py", folder=str(tmp_path)).output is None


def test_patterns_of_capture_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in destination._RANK_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    assert destination.expand("a.%p.hiw") == f"a.{os.getpid()}.hiw"
    assert destination.expand("%h-%%-%r") == f"{os.uname().nodename}-%-0"
    monkeypatch.setenv("SLURM_PROCID", "12")
    assert destination.expand("%r") == "12"
    with pytest.raises(CaptureUnwritable, match="means nothing"):
        destination.expand("100%")
    assert destination.default_pattern("a b/c%p") == "hiwater-a_b_c_p.%p.hiw"
