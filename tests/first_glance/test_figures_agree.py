"""A figure that is shown in several places is the same number with the same word: in a run's last lines, text, HTML,
page data, JSON and under a notebook's cell."""

import contextlib
import html
import io
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hiwater._os import sizes
from hiwater._os.sizes import format_size
from hiwater.cli import main
from hiwater.notebook import rendering
from packages import skip_without
from page_reader import Page
from recording import needs_engine

PROGRAMS = Path(__file__).parent / "programs"
SIZE = r"[\d.,]+ [KMGT]?i?B"
PHRASE = r"exact|within [^ ,·)]+ \w+|at least|± [^ ,]+ \w+ \(standard error\)"
SENTENCE = (
    r"(?P<allocated>SIZE) allocated at the peak.*; most[^:]* at (?P<place>\S+) in \w+: (?P<top>SIZE) "
    r"\((?P<share>[\d.]+ %)\)"
)
Figures = dict[str, str]
"""What one report says, by the word for it."""


def found(text: str, *patterns: str) -> Figures:
    """The named groups of these patterns, each of which must match."""
    figures: Figures = {}
    for pattern in patterns:
        match = re.search(pattern.replace("SIZE", SIZE).replace("PHRASE", PHRASE), text)
        assert match, f"{pattern} is not in:\n{text}"
        figures |= {name: value for name, value in match.groupdict().items() if value is not None}
    return figures


def of_run(capture: Path, program: str, *options: str) -> Figures:
    words = [sys.executable, "-m", "hiwater", "run", *options, "-o", capture, program]
    done = subprocess.run(words, cwd=PROGRAMS, capture_output=True, text=True, check=True, timeout=300)
    return found(
        done.stderr,
        r"peak (?P<allocated>SIZE) allocated \((?P<allocated_accuracy>PHRASE), (?P<blocks>[\d,]+) blocks\), "
        r"(?P<resident>SIZE) resident \((?P<resident_accuracy>PHRASE)\) and (?P<overhead>SIZE) overhead of hiwater",
        SENTENCE,
    ) | of_groups(done.stderr, r"allocated at the peak, (?P<untouched>SIZE) of it never touched")


def of_groups(text: str, *patterns: str) -> Figures:
    """Figures that are left out where they are small."""
    return {
        name: value
        for pattern in patterns
        if re.search(pattern.replace("SIZE", SIZE), text)
        for name, value in found(text, pattern).items()
    }


def shown(capture: Path, *words: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["report", str(capture), *words]) == 0
    return said.getvalue()


def of_text(capture: Path, *words: str) -> Figures:
    text = shown(capture, *words)
    return found(
        text,
        r"\n" + SENTENCE,
        r"\n  allocated +(?P<allocated>SIZE)  (?P<allocated_accuracy>PHRASE) · requested bytes · "
            r"(?P<blocks>[\d,]+) blocks · at",
        r"\n  resident +(?P<resident>SIZE)  (?P<resident_accuracy>PHRASE) · .* and (?P<overhead>SIZE) "
            r"overhead of hiwater",
        r"\n  at the end +(?P<end>SIZE)  still allocated",
        r"\nYour lines.*\n +(?P<top>SIZE) +(?P<share>[\d.]+ %)",
    ) | of_groups(
        text, r"allocated at the peak, (?P<untouched>SIZE) of it never touched",
        r"\n +(?P<untouched>SIZE) +[\d.]+ %  never touched", r"\n +(?P<imports>\d+\.\d MiB) +[\d.]+ %  imports",
    )  # fmt: skip


def of_data(summary: dict[str, Any]) -> Figures:
    """JSON, and the summary in the data of a page."""
    peak, resident, lines = summary["peak"], summary["resident"], summary["lines"]
    error = peak["standard_error_bytes"]
    figures = {
        "allocated": size(peak["allocated_bytes"]),
        "allocated_accuracy": sizes.accuracy_of_estimate(error) if error else "exact",
        "blocks": f"{peak['blocks']:,}",
        "resident": size(resident["program_peak_bytes"]),
        "resident_accuracy": sizes.accuracy_of_peak(exact=resident["exact"], error_bytes=resident["error_bytes"]),
        "overhead": size(resident["overhead_bytes"]),
        "end": size(summary["end"]["allocated_bytes"]),
        "top": size(summary["headline"]["bytes"]),
        "place": f"{Path(summary['headline']['file']).name}:{summary['headline']['line']}",
        "share": f"{100 * summary['headline']['bytes'] / peak['allocated_bytes']:.1f} %",
    }
    assert resident["program_peak_bytes"] + resident["overhead_bytes"] <= resident["peak_bytes"]
    large = {"imports": lines["imports_bytes"], "untouched": lines["untouched_bytes"]}
    return figures | {name: size(count) for name, count in large.items() if count >= 1 << 20}


def of_page(capture: dict[str, Any]) -> Figures:
    phrases = {"allocated_accuracy": capture["exactness"], "resident_accuracy": capture["resident_exactness"]}
    return of_data(capture["summary"]) | phrases


def size(count: int) -> str:
    return format_size(count, 1)


def of_static(page: str) -> Figures:
    """What a page shows where scripts may not run."""
    text = html.unescape(re.sub(r"<[^>]*>", " ", page.partition('<main class="summary">')[2].partition("</main>")[0]))
    return found(
        re.sub(r"\s+", " ", text),
        SENTENCE,
        r"allocated at its peak (?P<allocated>SIZE) (?P<allocated_accuracy>PHRASE) · requested bytes · "
        r"(?P<blocks>[\d,]+) blocks",
        r"resident at its peak (?P<resident>SIZE) (?P<resident_accuracy>PHRASE), and (?P<overhead>SIZE) "
        r"overhead of hiwater",
        r"allocated at the end (?P<end>SIZE)",
        r"with everything it called (?P<top>SIZE) (?P<share>[\d.]+ %)",
    )


def of_cell(capture: Path) -> Figures:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        rendering.main(["report", str(capture), "--no-page"])
    text = json.loads(said.getvalue())["text"]
    return found(
        text,
        r"peak (?P<allocated>SIZE) allocated \((?P<allocated_accuracy>PHRASE), (?P<blocks>[\d,]+) blocks\), "
        r"kept (?P<end>SIZE)",
        r"(?P<resident>SIZE) at the peak \((?P<resident_accuracy>PHRASE)\) and (?P<overhead>SIZE) overhead of hiwater",
        r"libraries:\n +(?P<top>SIZE) +(?P<share>[\d.]+ %)  (?P<place>\S+)",
    ) | of_groups(
        text, r"\n +(?P<imports>SIZE) +[\d.]+ %  imports", r"\n +(?P<untouched>SIZE) +[\d.]+ %  never touched"
    )


@pytest.mark.grid
@needs_engine
@pytest.mark.parametrize("options", [(), ("--sample", "16KiB")], ids=["exact", "sampled"])
@pytest.mark.parametrize("program", ["pandas_merge.py", "cache_leak.py"])
def test_each_figure_is_the_same_everywhere(program: str, options: tuple[str, ...], tmp_path: Path) -> None:
    skip_without("pandas")
    capture = tmp_path / "a.hiw"
    run = of_run(capture, program, *options)
    page = shown(capture, "--html", "-o", "-")
    reports: dict[str, Callable[[], Figures]] = {
        "run": lambda: run,
        "text": lambda: of_text(capture),
        "full text": lambda: of_text(capture, "--full"),
        "JSON": lambda: of_data(json.loads(shown(capture, "--format", "json"))),
        "page": lambda: of_page(Page(page).capture),
        "page without scripts": lambda: of_static(page),
        "cell": lambda: of_cell(capture),
    }
    said: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, read in reports.items():
        for word, value in read().items():
            said[word][value].append(name)
    assert {word: dict(values) for word, values in said.items() if len(values) > 1} == {}
    everywhere = {"allocated", "allocated_accuracy", "blocks", "resident", "resident_accuracy", "overhead", "top"}
    assert everywhere <= {word for word, values in said.items() if sum(map(len, values.values())) == len(reports)}
