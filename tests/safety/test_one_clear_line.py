"""What cannot be done is one clear line, whichever verb is asked: numbers of more than 64 bits, names that are too
long, and empty ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from children import run_hiwater, run_python
from recording import needs_engine

pytestmark = needs_engine

LONG, DEEP = "x" * 300, "x/" * 3000
REFUSED = [
    ("run", "--limit", 1 << 64, "-c", "pass"),
    ("run", "--limit", "99999999TiB", "-c", "pass"),
    ("run", "--sample-seed", 1 << 64, "-c", "pass"),
    ("run", "--sample-seed", "9" * 5000, "-c", "pass"),
    ("run", "-o", LONG, "-c", "pass"),
    ("live", ""),
    ("live", "/"),
    ("report", DEEP),
    ("live", DEEP),
    *((*verb, LONG) for verb in (
        ("report",), ("live",), ("report", "--format=timeline"), ("holders",), ("leaks",), ("diff", "a.hiw"),
        ("merge", "-o", "m.hiw"), ("snapshot", "-o", "s.hiw"),
        ("check", "--peak", "1GiB"), ("report", "a.hiw", "-o"),
    )),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("captures")
    run_hiwater("run", "-q", "-o", "a.hiw", "-c", "pass", folder=made, check=True)
    (made / "empty").mkdir()
    return made


@pytest.mark.parametrize("words", REFUSED, ids=range(len(REFUSED)))
def test_it_is_refused_in_one_line(words: tuple[object, ...], folder: Path) -> None:
    done = run_hiwater(*words, folder=folder / "empty" if words == ("live", "") else folder)
    assert done.returncode in (2, 125), done.stderr[-300:]
    assert done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("hiwater")


DEEP_ARRAY = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "words", [("run", "-c", "pass"), ("check",), ("leaks", "a.hiw", "--suppressions", "pyproject.toml")], ids=" ".join
)
def test_toml_of_any_depth_is_read_or_refused_in_one_line(words: tuple[str, ...], folder: Path) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.hiwater]\nown = {DEEP_ARRAY}\n")
    done = run_hiwater(*words, folder=folder)
    (folder / "pyproject.toml").unlink()
    assert done.returncode in (2, 125) and done.stderr.count("\n") == 1 and done.stderr.startswith("hiwater: ")


def test_toml_that_only_mentions_a_table_has_no_settings(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("tool = 3  # no [tool.hiwater]\n")
    done = run_hiwater("run", "-q", "-o", "c.hiw", "-c", "pass", folder=folder)
    (folder / "pyproject.toml").unlink()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_records_itself_takes_no_harm_from_toml(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.hiwater]\nown = {DEEP_ARRAY}\n")
    source = "import hiwater\nwith hiwater.record('b.hiw'): print(7)"
    done = run_python("-c", source, folder=folder)
    (folder / "pyproject.toml").unlink()
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr[-300:]


def test_pages_that_nobody_named_are_their_owners_alone(tmp_path: Path) -> None:
    """They hold source and arguments. What somebody put in their place is neither followed nor waited for."""
    os.mkfifo(tmp_path / "a.svg")
    (tmp_path / "a.html").symlink_to(tmp_path / "elsewhere.html")
    run_hiwater("run", "-q", "-o", "a.hiw", "--format", "html", "-c", "pass", folder=tmp_path, check=True)
    for made in ("svg", "speedscope"):
        run_hiwater("report", "a.hiw", "--format", made, folder=tmp_path, check=True)
    made = [path for path in tmp_path.iterdir() if path.name.startswith("a.")]
    assert {(path.name, stat.S_IFMT(path.lstat().st_mode), stat.S_IMODE(path.lstat().st_mode)) for path in made} == {
        (f"a{suffix}", stat.S_IFREG, 0o600) for suffix in (".hiw", ".html", ".svg", ".speedscope.json")
    }
    assert not (tmp_path / "elsewhere.html").exists()


def test_a_page_that_the_user_named_is_as_any_file_and_follows_links(tmp_path: Path) -> None:
    run_hiwater("run", "-q", "-o", "a.hiw", "-c", "pass", folder=tmp_path, check=True)
    (tmp_path / "page.html").symlink_to("elsewhere.html")
    run_hiwater("report", "a.hiw", "--format", "html", "-o", "page.html", folder=tmp_path, check=True)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "elsewhere.html").lstat().st_mode) == 0o666 & ~mask
