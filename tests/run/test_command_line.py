"""The command line as a whole: what it answers to a word that it does not know, the examples of `--help`, and
completion by shells."""

from __future__ import annotations

import os
import re
import resource
import runpy
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from capture_builder import Recording
from children import run_hiwater
from hiwater._os.settings import Settings
from hiwater.cli import lines_arguments, main, run_arguments, verbs
from hiwater.errors import UsageError
from places import ROOT

PARSERS = {"run": run_arguments.parse, "lines": lines_arguments.parse}


# Words that are not known


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["etl.py"], "'etl.py' is not a verb; to record a program: `hiwater run etl.py`"),
        (["etl.py", "--year", "20 24"], "`hiwater run etl.py --year '20 24'`"),
        (["-m", "pytest"], "`hiwater run -m pytest`"),
        (["small.hiw"], "'small.hiw' is not a verb; to read a capture: `hiwater report small.hiw`"),
        (["reprot"], "there is no verb 'reprot'; did you mean `hiwater report`?"),
        (["estimat", "x.py:f"], "did you mean `hiwater estimate`?"),
        (["xyzzy"], "there is no verb 'xyzzy'; `hiwater --help` lists the verbs"),
        (["--verison"], "unknown option '--verison'; did you mean --version? see `hiwater --help`"),
        (["report", "--formt", "html", "small.hiw"], "did you mean --format? see `hiwater report --help`"),
        (["merge", "--ouput=x.hiw", "small.hiw"], "unknown option '--ouput=x.hiw'; did you mean --output?"),
        (["run", "--sampel", "64KiB", "x.py"], "did you mean --sample? see `hiwater run --help`: "),
        (["lines", "--presicion", "1", "x.py"], "did you mean --precision?"),
        (["sample", "--intervl", "1ms", "--", "true"], "did you mean --interval?"),
        (["estimate", "--devise", "cpu", "x.py:f"], "did you mean --device?"),
        (["doctor", "-z"], "unknown option '-z'; see `hiwater doctor --help`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_word_that_is_not_known_is_answered_with_what_was_probably_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    recording = Recording()
    recording.end()
    (tmp_path / "small.hiw").write_bytes(recording.to_bytes())
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and said in printed.err and printed.err.count("\n") == 1, printed


@pytest.mark.parametrize("verb", [verb for verb in verbs.VERBS if verb != "doctor"])
def test_a_verb_without_a_word_says_in_one_line_what_is_missing(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(SystemExit):
        assert main([verb]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and re.match(r"hiwater: .+; .+", lines[0])


def test_options_of_the_command_that_is_watched_are_its_own(tmp_path: Path) -> None:
    done = run_hiwater("sample", "-q", "--", "echo", "--intervl", "-z", folder=tmp_path, check=True)
    assert done.stdout == "--intervl -z\n"
    assert verbs.parse(["sample", "-i", "1ms", "--", "echo", "-i"])[0].command == ["echo", "-i"]


# The examples of --help


def examples(text: str) -> list[list[str]]:
    """The commands among the examples of a help text, each as its words after "hiwater"; two blanks begin a comment."""
    found = []
    for line in text.partition("examples:\n")[2].partition("\n\n")[0].splitlines():
        command = line.strip().partition("  ")[0]
        inner = re.search(r"\$\((.*?)\)", command)
        reader = shlex.shlex(inner[1] if inner else command, posix=True, punctuation_chars=";")
        reader.whitespace_split = True
        words = [*reader]
        starts = [place for place, word in enumerate(words) if word == "hiwater"]
        found += [
            words[start + 1 : end] for start, end in zip(starts, [*(s - 1 for s in starts[1:]), None], strict=True)
        ]
    return found


def help_of(verb: str, capfd: pytest.CaptureFixture[str], option: str = "--help") -> str:
    with suppress(SystemExit):
        main([*filter(None, [verb]), option])
    return capfd.readouterr().out


def test_help_names_each_verb_under_what_a_person_wants(capfd: pytest.CaptureFixture[str]) -> None:
    said = help_of("", capfd)
    for group, words in verbs.GROUPS.items():
        part = said.partition(f"\n{group}:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in part.splitlines()] == list(words)


def options(text: str) -> list[str]:
    """The lines of a help text that begin an option, but for those of help itself."""
    lines = [line for line in text.partition("examples:")[0].splitlines() if line.startswith("  -")]
    return [line for line in lines if line.split()[0].strip(",") not in ("-h", "--help")]


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_h_shows_five_options_at_most_and_help_the_same_first(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    usual, every = options(help_of(verb, capfd, "-h")), options(help_of(verb, capfd))
    assert len(usual) <= 5 and every[: len(usual)] == usual
    if len(every) > len(usual):
        assert f"{len(every) - len(usual)} more" in help_of(verb, capfd, "-h")


def test_the_page_of_the_command_line_has_the_options_that_help_has() -> None:
    made = runpy.run_path(str(ROOT / "tools/command_line.py"))
    text = made["PAGE"].read_text("utf-8")
    assert [verb for verb in verbs.VERBS if f"<!-- options of {verb} -->" not in text] == []
    assert made["page"](text) == text, "`python tools/command_line.py` writes the page"


def commands_of(text: str) -> list[list[str]]:
    """The commands of a page that can be typed as they are, each as its words after "hiwater"."""
    lines = re.findall(r"^(?: {4}|\$ )(hiwater \w+ .*)$", text, re.MULTILINE)
    commands = [re.split(r"\s{2,}|\s(?:#|\||&|>)", line)[0] for line in lines]
    return [shlex.split(command)[1:] for command in commands if not re.search(r"[…\[]|^hiwater \w+$", command)]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.stem
)
def test_each_command_of_a_page_is_one_that_its_parser_takes(page: Path) -> None:
    for words in commands_of(page.read_text("utf-8")):
        if words[0] in PARSERS:
            PARSERS[words[0]](words[1:], Settings({}, None))
        elif words[0] in verbs.VERBS:
            verbs.parse(words)


@pytest.mark.parametrize("verb", ["", *verbs.VERBS])
def test_the_help_of_each_verb_has_examples_that_its_parser_takes(verb: str, capfd: pytest.CaptureFixture[str]) -> None:
    found = examples(help_of(verb, capfd))
    assert any(words[0] == verb or not verb for words in found), found
    for words in found:
        if words[0] in PARSERS:
            assert PARSERS[words[0]](words[1:], Settings({}, None)).program
        else:
            assert verbs.parse(words)[0].verb == words[0]


def test_an_example_that_its_parser_refuses_is_found() -> None:
    (words,) = examples("examples:\n  hiwater merge --into job.hiw run.*.hiw  all of them\n")
    assert words == ["merge", "--into", "job.hiw", "run.*.hiw"]
    with pytest.raises(UsageError, match="unknown option"):
        verbs.parse(words)


# Completion


def completed(folder: Path, line: str) -> list[str]:
    """What `hiwater` answers to argcomplete's function in bash, for a line with the cursor at its end."""
    pytest.importorskip("argcomplete")
    answer, write = os.pipe()
    environment = {
        **os.environ, "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "bash", "COMP_TYPE": "9",
        "COMP_LINE": line, "COMP_POINT": str(len(line.encode())),
    }  # fmt: skip
    command = ["bash", "-c", f"exec {shlex.quote(sys.executable)} -m hiwater 8>&{write} 9>/dev/null"]
    done = subprocess.run(command, cwd=folder, env=environment, pass_fds=[write], capture_output=True, check=False)
    os.close(write)
    with os.fdopen(answer) as stream:
        said = stream.read()
    assert (done.returncode, done.stdout) == (0, b""), done
    return sorted(word.strip() for word in said.split("\n") if word)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hiwater re", ["report"]),
        ("hiwater report ", ["one.hiw"]),
        ("hiwater report --kind d", ["device"]),
        ("hiwater report --format s", ["speedscope", "svg"]),
        ("hiwater diff one.hiw ", ["one.hiw"]),
        ("hiwater diff --format m", ["markdown"]),
        ("hiwater run --sa", ["--sample", "--sample-seed"]),
        ("hiwater run --format pp", ["pprof"]),
        ("hiwater run pro", ["program.py"]),
        ("hiwater run program.py --s", []),
        ("hiwater lines --fu", ["--function"]),
        ("hiwater sample --in", ["--interval"]),
        ("hiwater estimate --mode i", ["inference"]),
    ],
)
def test_words_that_may_follow(tmp_path: Path, line: str, words: list[str]) -> None:
    (tmp_path / "one.hiw").touch()
    (tmp_path / "program.py").touch()
    assert completed(tmp_path, line) == words


def test_every_verb_is_completed(tmp_path: Path) -> None:
    assert completed(tmp_path, "hiwater ") == sorted(verbs.VERBS)
    for verb in verbs.VERBS:
        assert "--help" in completed(tmp_path, f"hiwater {verb} --h")


def test_completion_is_quick(tmp_path: Path) -> None:
    """Its time on a processor, which other work on this machine does not change much."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        completed(tmp_path, "hiwater report --")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.2, seconds


SHELLS = {  # before the documented line, the line, and what shows that it worked
    "bash": ("true", 'eval "$(register-python-argcomplete hiwater)"', "complete -p hiwater"),
    "zsh": ("autoload -U compinit; compinit -u", 'eval "$(register-python-argcomplete hiwater)"',
        "print $_comps[hiwater]"),
    "fish": (
        "true", "register-python-argcomplete --shell fish hiwater | source", 'complete --do-complete "hiwater rep"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_the_line_for_the_startup_file_of_a_shell(shell: str, tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    assert SHELLS[shell][1] in (ROOT / "docs" / "command-line.md").read_text("utf-8")
    line = "; ".join(SHELLS[shell])
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, "-c", line], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert ("report" if shell == "fish" else "argcomplete") in done.stdout, done
