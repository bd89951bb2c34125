"""`hiwater check`: what is compared, the exit code, the line behind it, and each output as its reader takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import schemas
from capture_builder import Recording
from children import run_python
from example_captures import each_hostile_name
from hiwater.cli import main
from recording import needs_engine

KIB = 1024
MIB = 1024 * KIB


def write_capture(
    path: Path, *lines: tuple[str, int, int], program: str = "train.py", sample: int = 0, is_killed: bool = False
) -> Path:
    """A capture of (function, line, bytes), all held at the peak and at the end."""
    recording = Recording()
    recording.fact("argv", json.dumps([program]))
    recording.fact("cwd", "/app")
    recording.fact("python", "3.11.7")
    recording.header["sample_bytes"] = sample
    for function, line, count in lines:
        recording.allocate(recording.path(("<module>", "/app/train.py", 90), (function, "/app/train.py", line)), count)
    recording.sample(50 * MIB)
    if not is_killed:
        recording.end()
    path.write_bytes(recording.to_bytes())
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test runs where pyproject.toml has programs to check, and a baseline to be updated."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "before.hiw", ("load", 10, 4 * MIB), ("parse", 20, 3 * MIB))


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    return write_capture(tmp_path / "grown.hiw", ("load", 10, 4 * MIB), ("parse", 20, 5 * MIB))


def check(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["check", *map(str, words)])
    said = capfd.readouterr()
    return code, said.out, said.err


def as_json(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code, out, _ = check(capfd, "--format", "json", *words)
    found = json.loads(out)
    schemas.check(found, "check")
    return code, found


def verdicts(program: Any) -> dict[str, str]:
    return {row["figure"]: row["verdict"] for row in program["figures"]}


# What is compared, and the exit code


def test_the_same_is_fine_whatever_form_the_baseline_has(
    tmp_path: Path, before: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report, file, folder = tmp_path / "before.json", tmp_path / "memory.json", tmp_path / "main"
    assert main(["report", str(before), "--format", "json", "-o", str(report)]) == 0
    assert check(capfd, before, "--baseline", file, "--update")[0] == 0
    folder.mkdir()
    write_capture(folder / "train.hiw", ("load", 10, 4 * MIB), ("parse", 20, 3 * MIB))
    for baseline in (before, report, file, folder):
        code, found = as_json(capfd, before, "--baseline", baseline, "--tolerance", "0")
        assert (code, found["kept"]) == (0, True), baseline
        (program,) = found["programs"]
        assert {"peak_bytes", "allocated_bytes", "allocations", "kept_bytes"} <= verdicts(program).keys()
        assert set(verdicts(program).values()) == {"same"}
        assert all(row["before"] == row["now"] for row in program["figures"])


def test_what_grew_fails_and_names_the_line_that_grew(
    before: Path, grown: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, found = as_json(capfd, grown, "--baseline", before)
    assert code == 1
    assert verdicts(found["programs"][0])["peak_bytes"] == "worse"
    (cause,) = found["programs"][0]["causes"]  # load did not grow
    assert (cause["line"], cause["change_bytes"], cause["bytes"]) == (20, 2 * MIB, 5 * MIB)
    code, text, _ = check(capfd, grown, "--baseline", before)
    assert code == 1
    assert "+2.0 MiB at train.py:20 in parse" in text.splitlines()[0]


def test_with_figures_alone_the_line_that_holds_most_is_named(
    tmp_path: Path, before: Path, grown: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "memory.json"
    check(capfd, before, "--baseline", file, "--update")
    code, found = as_json(capfd, grown, "--baseline", file)
    assert code == 1
    assert [(cause["line"], cause["change_bytes"]) for cause in found["programs"][0]["causes"]] == [
        (20, None),
        (10, None),
    ]
    assert "held most at the peak: 5.0 MiB at train.py:20 in parse" in found["words"]


def test_what_shrank_is_fine_and_says_how_to_keep_it(
    before: Path, grown: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, found = as_json(capfd, before, "--baseline", grown)
    assert (code, verdicts(found["programs"][0])["peak_bytes"]) == (0, "better")
    assert any("--update writes the lower figures" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("tolerance", "code"), [("0", 1), ("28%", 1), ("29%", 0), ("2MiB", 0), ("2047KiB", 1), ("1%,2MiB", 0)]
)
def test_tolerances_decide(
    before: Path, grown: Path, tolerance: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    words = (grown, "--baseline", before, "--figures", "peak", "--tolerance", tolerance)
    assert check(capfd, *words)[0] == code


@pytest.mark.parametrize(
    ("option", "size", "code"),
    [
        ("--peak", "7MiB", 0),
        ("--peak", "7MK", 2),
        ("--peak", "7167KiB", 1),
        ("--kept", "7MiB", 0),
        ("--kept", "1MiB", 1),
        ("--allocated", "7MiB", 0),
        ("--allocated", "1", 1),
        ("--allocations", "2", 0),
        ("--allocations", "1", 1),
        ("--resident", "1GiB", 0),
        ("--resident", "10MiB", 1),
        ("--device", "1MiB", 2),
    ],
)
def test_limits_decide(before: Path, option: str, size: str, code: int, capfd: pytest.CaptureFixture[str]) -> None:
    found, out, err = check(capfd, before, option, size)
    assert found == code, err
    assert ("above the limit of" in out) == (code == 1)


@pytest.mark.parametrize(("limit", "code", "words"), [(80, 0, "not known"), (40, 1, "above the limit")])
def test_a_lower_bound_does_not_tell_that_a_limit_is_kept(
    tmp_path: Path, limit: int, code: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a process that was killed, nobody read the resident memory at its end."""
    killed = write_capture(tmp_path / "killed.hiw", ("load", 10, 4 * MIB), is_killed=True)
    request = (killed, "--resident", f"{limit}MiB")
    found, text, _ = check(capfd, *request)
    row = next(line for line in text.splitlines() if line.startswith("  resident at the peak"))
    assert found == code and "≥ 64.0 MiB" in row and row.endswith(words)
    assert "train: the resident peak of process 4242 is at least: as last read before it was killed" in text
    assert ("≥ 64.0 MiB, above the limit" if code else "lower bounds do not tell") in text
    assert (
        f"≥ 64.0 MiB |  | {limit}.0 MiB | {'❌ worse' if code else 'not known'} |"
        in check(capfd, *request, "--format", "markdown")[1]
    )
    (told,) = as_json(capfd, *request)[1]["programs"][0]["limits"]
    assert told["at_least"] is True and told["verdict"] == ("worse" if code else "unknown")


def test_a_difference_within_the_error_of_samples_is_no_failure_and_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sides = [
        write_capture(tmp_path / f"{count}.hiw", ("load", 10, count), sample=MIB) for count in (20 * MIB, 24 * MIB)
    ]
    words = (sides[1], "--baseline", sides[0], "--figures", "peak", "--tolerance", "0")
    code, found = as_json(capfd, *words)
    (row,) = found["programs"][0]["figures"]
    assert row["error"] >= 4 * MIB, "the error of this sampling interval"
    assert (code, row["verdict"]) == (0, "same")
    assert any("by less than its error" in note for note in found["notes"])
    assert check(capfd, sides[1], "--peak", "22MiB")[0] == 0
    assert check(capfd, sides[1], "--peak", "10MiB")[0] == 1


def test_an_update_writes_what_repeats_and_keeps_what_was_chosen(
    tmp_path: Path, before: Path, grown: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "memory.json"
    check(capfd, before, "--baseline", file, "--update")
    written = json.loads(file.read_text("utf-8"))
    assert set(written["entries"]["train"]) == {"peak_bytes", "allocated_bytes", "allocations", "kept_bytes"}
    assert written["environment"]["python"] == "3.11.7", "that of the capture"
    written["entries"]["train"] = {"peak_bytes": 1, "tolerance": "1%"}
    file.write_text(json.dumps(written), "utf-8")
    code, out, _ = check(capfd, grown, "--baseline", file, "--update")
    assert code == 0
    assert "was updated" in out
    assert json.loads(file.read_text("utf-8"))["entries"]["train"] == {"peak_bytes": 9 * MIB, "tolerance": "1%"}
    check(capfd, grown, "--baseline", file, "--update", "--figures", "kept,resident")
    assert set(json.loads(file.read_text("utf-8"))["entries"]["train"]) == {"kept_bytes", "resident_bytes", "tolerance"}


def test_new_and_absent_programs_are_told_and_are_no_failures(
    tmp_path: Path, before: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "memory.json"
    check(capfd, before, f"other={before}", "--baseline", file, "--update")
    code, found = as_json(capfd, before, f"new={before}", "--baseline", file)
    assert (code, found["not_measured"]) == (0, ["other"])
    assert any("'new': not in the baseline" in note for note in found["notes"])


def test_two_programs_of_one_name_are_refused(before: Path, grown: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = check(capfd, before, grown, "--peak", "1GiB")
    assert code == 2
    assert "NAME=CAPTURE" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{before}"], "nothing to check against"),
        (["{before}", "--update"], "--baseline"),
        (["{before}", "--baseline", "none.json"], "cannot be read"),
        (["{before}", "--baseline", "{here}"], "not a baseline"),
        (["{before}", "--baseline", "{before}", "--update"], "*.json"),
        (["{before}", "--baseline", "{before}", "--tolerance", "x%"], "percentage"),
        (["{before}", "--baseline", "{before}", "--figures", "size"], "'size' is not a figure"),
        (["{before}", "--peak", "many"], "--peak"),
        (["{before}", "--peak", "1GiB", "--write", "pdf=x"], "FORMAT=OUT"),
        (["none.hiw", "--peak", "1GiB"], "none.hiw"),
        (["{before}", "--peak", "1GiB", "--", "x.py"], "one of them"),
    ],
)
def test_wrong_requests_have_one_line_and_exit_code_2(
    tmp_path: Path, before: Path, words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text("{}", "utf-8")
    code, out, err = check(capfd, *(word.format(before=before, here=empty) for word in words))
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_nothing_in_common_is_no_pass(tmp_path: Path, before: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "memory.json"
    check(capfd, f"a={before}", f"b={before}", "--baseline", file, "--update")
    code, _, err = check(capfd, before, "--baseline", file)
    assert code == 2
    assert "nothing can be compared" in err


# Outputs


def test_annotations_of_github_are_at_the_line(before: Path, grown: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = check(capfd, grown, "--baseline", before, "--format", "github")
    (line,) = out.splitlines()
    properties, _, message = line.removeprefix("::error ").partition("::")
    assert (code, dict(one.split("=") for one in properties.split(","))) == (
        1,
        {"file": "train.py", "line": "20", "title": "train uses more memory"},
    )
    assert "+2.0 MiB at train.py:20 in parse" in message
    assert "%25" in message
    assert "%" not in message.replace("%25", "")
    assert err.startswith("hiwater: train uses more memory")
    assert check(capfd, before, "--baseline", before, "--format", "github")[1].startswith("::notice ")


@each_hostile_name
def test_hostile_names_break_out_of_no_output(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    recording = Recording()
    recording.fact("argv", json.dumps([name]))
    recording.allocate(recording.path((name, name, 3)), MIB)
    recording.end()
    capture = tmp_path / "hostile.hiw"
    capture.write_bytes(recording.to_bytes())
    for output_format in ("text", "github", "markdown", "junit", "json"):
        code, out, _ = check(capfd, capture, "--peak", "1", "--format", output_format)
        assert code == 1
        assert "\x1b" not in out
        if output_format == "github":
            (line,) = out.splitlines()
            properties = line.removeprefix("::error ").partition("::")[0]
            assert [one.partition("=")[0] for one in properties.split(",")] in (["file", "line", "title"], ["title"])
        elif output_format == "junit":
            ElementTree.fromstring(out)
        elif output_format.endswith("json"):
            json.loads(out)


def test_ten_annotations_at_most(tmp_path: Path, before: Path, capfd: pytest.CaptureFixture[str]) -> None:
    captures = [f"p{number}={before}" for number in range(30)]
    _, out, _ = check(capfd, *captures, "--peak", "1", "--format", "github")
    assert len(out.splitlines()) == 10
    assert "30 of 30 programs" in out.splitlines()[-1]


def test_markdown_is_bounded(before: Path, capfd: pytest.CaptureFixture[str]) -> None:
    captures = [f"program-{number:04}-{'x' * 60}={before}" for number in range(120)]
    _, out, _ = check(capfd, *captures, "--peak", "1", "--kept", "1", "--resident", "1", "--format", "markdown")
    assert len(out) < 65_536
    assert "and 100 more programs" in out
    assert "❌" in out


def test_junit_has_the_figures_and_the_failures(before: Path, grown: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = check(capfd, grown, "--baseline", before, "--format", "junit")
    root = ElementTree.fromstring(out)
    (case,) = root.iter("testcase")
    figures = {one.get("name"): one.get("value") for one in case.iter("property")}
    assert (case.get("name"), figures["hiwater.peak_bytes"]) == ("train", str(9 * MIB))
    suite = root.find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("tests")) == ("1", "1")
    assert any("at train.py:20" in (failure.text or "") for failure in case.iter("failure"))


def test_several_outputs_at_once(tmp_path: Path, before: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("junit", "markdown", "json")}
    words = [word for name, file in files.items() for word in ("--write", f"{name}={file}")]
    code, out, _ = check(capfd, before, "--peak", "1GiB", *words)
    assert code == 0
    assert out.startswith("1 program keeps to what is allowed")
    ElementTree.parse(files["junit"])
    schemas.check(json.loads(files["json"].read_text("utf-8")), "check")
    assert files["markdown"].read_text("utf-8").startswith("### Memory")


# Programs that are run

PROGRAM = """\
import sys
held = [bytearray(1000) for _ in range(int(sys.argv[1]))]
print("done")
"""


@needs_engine
def test_programs_of_pyproject_are_run_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    (tmp_path / "deep").mkdir()
    settings = tmp_path / "pyproject.toml"
    table = '[tool.hiwater.check]\nbaseline = "memory.json"\nprograms = {{ small = "train.py {}", tiny = "-c pass" }}\n'
    settings.write_text(table.format(1000), "utf-8")
    monkeypatch.chdir(tmp_path / "deep")
    code, out, err = check(capfd, "--update", "--save", "saved")
    assert code == 0, err
    assert "done" not in out
    assert "done" in err
    assert sorted(one.name for one in (tmp_path / "deep" / "saved").iterdir()) == ["small.hiw", "tiny.hiw"]
    entries = json.loads((tmp_path / "memory.json").read_text("utf-8"))["entries"]
    assert entries["small"]["peak_bytes"] > 1_000_000 > entries["tiny"]["peak_bytes"]
    assert check(capfd, "--program", "small")[0] == 0, "a second run has the same figures"
    settings.write_text(table.format(1500), "utf-8")
    code, found = as_json(capfd, "--baseline", "saved")
    assert (code, [one["name"] for one in found["programs"]]) == (1, ["small", "tiny"])
    assert [(cause["line"], cause["change_bytes"] > 500_000) for cause in found["programs"][0]["causes"]] == [(2, True)]
    assert check(capfd, "--program", "none")[0] == 2
    code, _, err = check(capfd, "saved/small.hiw", "--update")
    assert (code, "--update has no file to write" in err) == (2, True), "the baseline is that of the programs"


@needs_engine
def test_a_program_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM, "utf-8")
    code, found = as_json(capfd, "--peak", "1MB", "--", "train.py", "1200")
    assert (code, found["programs"][0]["name"]) == (1, "train")
    assert found["programs"][0]["causes"][0]["line"] == 2
    code, _, err = check(capfd, "--peak", "1MB", "--", "-c", "raise SystemExit(3)")
    assert code == 126
    assert "ended with 3" in err


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "names programs to check"),
        ("check = 1", "not a table"),
        ("[tool.hiwater.check]\nprograms = 1", "programs in"),
        ("[tool.hiwater.check]\nprograms = { a = 1 }", "programs in"),
        ("[tool.hiwater.check]\nprograms = { a = '' }", "is empty"),
        ("[tool.hiwater.check]\nprograms = { a = '\"x' }", "quotes"),
        ("[tool.hiwater.check]\nprograms = { '../a' = 'x.py' }", "name of a file"),
        ("[tool.hiwater.check]\nbaseline = 1", "baseline in"),
        ("[tool.hiwater.check]\nprograms = { a = 'x.py' }\nwarm_up = 'x'", "warm_up in"),
        ("[tool.hiwater.check", "cannot be read"),
    ],
)
def test_wrong_settings_have_one_line(
    tmp_path: Path, table: str, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_text(f"[tool.hiwater]\n{table}\n", "utf-8")
    code, _, err = check(capfd, "--peak", "1GiB")
    assert (code, err.count("\n")) == (2, 1)
    assert said in err


def test_the_verb_loads_no_reader_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:

    words = "import sys; from hiwater.cli import verbs; verbs.parse(['check', 'x.hiw']); print('numpy' in sys.modules)"
    done = run_python("-c", words, check=True)
    assert done.stdout == "False\n"
