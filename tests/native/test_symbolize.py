"""`hiwater symbolize`: captures whose native frames have names on other machines."""

import json
import subprocess
from pathlib import Path

from children import run_hiwater
from hiwater.analysis.symbols import names_file
from native_recordings import record, recorded_with_a_copy
from recording import needs_engine

pytestmark = needs_engine


def hiwater_on(folder: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a verb as on a machine that has not seen anything yet."""
    folder.mkdir(exist_ok=True)
    return run_hiwater(*words, folder=folder, environment={"XDG_CACHE_HOME": str(folder / "cache")}, check=check)


def test_a_capture_keeps_its_names_where_the_libraries_are_not(tmp_path: Path) -> None:
    library, path = recorded_with_a_copy(tmp_path)
    said = hiwater_on(tmp_path / "here", "symbolize", str(path)).stderr
    assert "run.hiw.symbols" in said
    library.unlink()
    there = tmp_path / "there"
    there.mkdir()
    for name in ("run.hiw", "run.hiw.symbols"):
        (tmp_path / name).rename(there / name)
    shown = hiwater_on(there, "report", "run.hiw", "--at", "end", "--frames", "mixed", "--format", "collapsed").stdout
    assert "shapes::take(unsigned long) (" in shown and "native_frames.cpp:" in shown
    notes = json.loads(hiwater_on(there, "report", "run.hiw", "--frames", "mixed", "--format", "json").stdout)
    (note,) = [one for one in notes["notes"] if "source lines" in one]
    named = int(note.split(" %")[0].split()[-1])
    (there / "run.hiw.symbols").unlink()
    bare = hiwater_on(there, "report", "run.hiw", "--at", "end", "--frames", "mixed", "--format", "collapsed")
    assert "shapes::take" not in bare.stdout and "copy.so+0x" in bare.stdout
    assert "cannot be read" in bare.stderr and named > 0  # an interpreter without symbols has few


def test_the_processes_of_a_run_share_one_file(tmp_path: Path) -> None:
    path = record(tmp_path, """
        import subprocess
        native.first(10_007)
        if len(sys.argv) == 2:
            subprocess.run([sys.executable, __file__, sys.argv[1], "child"], check=True)
    """, "--native")  # fmt: skip
    hiwater_on(tmp_path / "here", "symbolize", str(path))
    (child,) = (tmp_path / "run.hiw.d").glob("*.hiw")
    for name in ("native_frames", "native_frames.cpp"):
        assert name in (tmp_path / "run.hiw.symbols").read_text()
    assert names_file.with_captures([child]) == names_file.with_captures([path]) != {}


def test_a_merged_capture_keeps_the_names_of_all(tmp_path: Path) -> None:
    captures = list[Path]()
    for name, call in (("one", "first(10_007)"), ("two", "aligned(64, 10_007)")):
        (tmp_path / name).mkdir()
        captures.append(record(tmp_path / name, f"native.{call}\n", "--native"))
    there = tmp_path / "there"
    hiwater_on(there, "merge", "-q", "-o", "bare.hiw", *map(str, captures))
    assert not (there / "bare.hiw.symbols").exists()
    for capture in captures:
        hiwater_on(tmp_path / "here", "symbolize", str(capture))
    hiwater_on(there, "merge", "-q", "-o", "job.hiw", *map(str, captures))
    hiwater_on(there, "merge", "-q", "-o", "job.hiw", "job.hiw", str(captures[0]))
    merged = names_file.read(there / "job.hiw.symbols")
    for names in map(names_file.read, (tmp_path / name / "run.hiw.symbols" for name in ("one", "two"))):
        assert names
        for identity, one in names.items():
            assert merged[identity].places.items() >= one.places.items()
    (there / "other.hiw.symbols").mkdir()
    done = hiwater_on(there, "merge", "-o", "other.hiw", *map(str, captures))
    assert "warning: names of native functions cannot be written" in done.stderr
    assert "merged 2 captures into other.hiw" in done.stderr


def test_what_has_no_native_frames_is_refused(tmp_path: Path) -> None:
    path = record(tmp_path, "native.first(10_007)\n")
    done = hiwater_on(tmp_path / "here", "symbolize", str(path), check=False)
    assert (done.returncode, "no native frames" in done.stderr) == (2, True)


def test_every_format_with_stacks_shows_them(tmp_path: Path) -> None:
    path = record(tmp_path, "kept = native.first(3_000_000)\n", "--native")
    for form in ("collapsed", "svg", "speedscope", "csv", "table", "json"):
        for frames in ("python", "native") if form == "collapsed" else ("mixed",):
            shown = hiwater_on(tmp_path / "here", "report", str(path), "--frames", frames, "--format", form, "-o", "-")
            assert ("shapes::take" in shown.stdout) is (frames != "python"), (form, frames)
