"""Timelines that are drawn: as files, and in characters."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hiwater
from capture_builder import Recording
from hiwater.analysis.curves import Curve, Plot, Span, window
from hiwater.cli import main
from hiwater.report.export import plot
from hiwater.report.request import Report
from hiwater.report.text import timeline_plot
from hiwater.report.timelines import plots_of

pytest.importorskip("matplotlib")


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    recording = Recording()
    node = recording.path(("f", "a.py", 3))
    for step in range(20):
        recording.sample((20 + step) << 20)
        recording.allocate(node, 1 << 20)
    recording.end()
    path = tmp_path / "run.hiw"
    path.write_bytes(recording.to_bytes())
    return path


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its child lives long enough to be seen on a busy machine."""
    path = tmp_path_factory.mktemp("sampled") / "sampled.hiw"
    code = (
        "import subprocess, time; from hiwater.sampling.scope_file import append; a = time.monotonic_ns(); "
        "subprocess.run(['sleep', '1']); append('$x$ scope', a, time.monotonic_ns())"
    )
    words = ["-m", "hiwater", "sample", "-q", "-i", "1ms", "-o", str(path), "--", sys.executable, "-c", code]
    subprocess.run([sys.executable, *words], check=True)
    return path


@pytest.mark.parametrize(("drawing", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_drawings(capture: Path, sampled: Path, drawing: str, begins: bytes) -> None:
    assert main(["report", str(capture), "--format", drawing]) == 0
    assert capture.with_suffix(f".{drawing}").read_bytes().startswith(begins)
    out = capture.parent / "two"
    assert main(["report", str(capture), str(sampled), "--format", drawing, "-o", str(out)]) == 0
    assert out.read_bytes().startswith(begins)


def test_scopes_and_peaks_are_marked(sampled: Path) -> None:
    import matplotlib as mpl

    capture, out = hiwater.open(sampled), io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        plot.draw(plots_of([Report(capture, "peak")]), "svg", out)
    text = out.getvalue().decode()
    assert "$x$ scope" in text and "MiB" in text and "sleep" in text


def test_on_the_terminal(sampled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(sampled), "--format", "timeline"]) == 0
    text = capsys.readouterr().out
    assert "$x$ scope" in text and "peak" in text and any("\u2800" < letter < "\u2900" for letter in text)


def test_a_window_of_a_capture(capture: Path) -> None:
    read = hiwater.open(capture)
    at = read.timeline.at_ns / 1e9
    (whole,), (part,) = (plots_of([Report(read, moment)]) for moment in ("peak", f"{at[5]}:{at[9]}"))
    assert (len(whole.curves[0].seconds), len(part.curves[0].seconds)) == (20, 5)


def test_without_matplotlib_a_hint(capture: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; sys.modules['matplotlib.figure'] = None; from hiwater.cli "
        "import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "report", str(capture), "--format", "png"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 125 and "hiwater[plot]" in done.stderr and done.stderr.count("\n") == 1


def test_a_spike_between_two_columns_is_drawn() -> None:
    values = np.zeros(100_000)
    values[50_000] = 1e9
    shown = Plot("spike", (Curve("resident", "resident", np.arange(100_000) / 1e3, values),), (Span("s", 1, 2, 0),))
    out = io.StringIO()
    timeline_plot.draw([shown], out)
    rows = [line for line in out.getvalue().splitlines() if "┤" in line or "│" in line]
    assert all(any("\u2800" < letter < "\u2900" for letter in line) for line in rows[:16])


def test_a_window() -> None:
    shown = Plot(
        "w",
        (Curve("resident", "resident", np.arange(10.0), np.arange(10.0)),),
        (Span("s", 0, 3, 0), Span("t", 8, 9, 0)),
    )
    part = window(shown, 2, 4)
    assert part.curves[0].seconds.tolist() == [2, 3, 4] and part.spans == (Span("s", 2, 3, 0),)


def test_an_empty_timeline_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.hiw"
    path.write_bytes(Recording().to_bytes())
    assert main(["report", str(path), "--format", "timeline"]) == 0
    assert "nothing was recorded" in capsys.readouterr().out
