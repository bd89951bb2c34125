"""The summary that a page shows without scripts: the peaks, memory over time as a drawing, and the lines that held
most.

Colours are given twice, as attributes and as classes, because some sites allow no styles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from hiwater._os.headline import BEFORE
from hiwater.analysis.diff import MatchedComparison
from hiwater.analysis.user_lines import Ranking, rank_lines
from hiwater.capture.format import COUNTED_KINDS
from hiwater.capture.paths import Ints
from hiwater.report.diff_request import DiffReport, figure_words, headline, resident_exactness, snapshot_words
from hiwater.report.formatting import KIND_WORDS, frame_text, printable, seconds, share, signed_size, size
from hiwater.report.headline import headline as first_sentence
from hiwater.report.request import Report, run_of
from hiwater.report.text import processes
from hiwater.report.text.device_history import source_words

_WIDTH, _HEIGHT, _LEFT, _FOOT = 1000, 200, 70, 20
_MOST_SAMPLES = 500
_COLOURS = ("#8fbbe8", "#f3b272", "#85cda5", "#bf9ae0", "#e79ab4")
_LINES = 20
_NO_SCRIPTS = (
    "<noscript><p>Scripts may not run here. With them this page has the flame graph, every moment, tables and"
    " source.</p></noscript>\n"
)


def lines(reports: Sequence[Report]) -> Iterator[str]:
    """What the text report begins with, and of several processes the one with the highest peak."""
    run = run_of(reports)
    is_run = run.is_of_several and not any(report.capture.device for report in reports)
    report = processes.worst_first(reports)[0] if is_run else reports[0]
    folder, is_timeline = report.capture.facts.get("cwd", ""), report.capture.is_timeline
    ranking = None if is_timeline else rank_lines(report.capture.tables, report.holdings)
    yield '<main class="summary">\n'
    if is_run:
        yield from (f"<p>{escape(text)}</p>\n" for text, _ in processes.first_lines(reports, run, folder))
    yield f'<h1>{escape(printable(report.title, 120))}</h1>\n<p class="muted">{escape(_facts(report))}</p>\n'
    if ranking is not None:
        yield f"<p><b>{escape(first_sentence(report, ranking, folder))}</b></p>\n"
    yield f'<dl class="figures">{"".join(_figures(report))}</dl>\n'
    yield from _drawing(report)
    if ranking is not None:
        yield from _table(report, ranking)
    yield f"{_NO_SCRIPTS}</main>"


def changes(report: DiffReport) -> Iterator[str]:
    comparison, after = report.comparison, report.after
    yield '<main class="summary">\n'
    yield (
        "<h1>What changed in"
        f" {escape(printable(after.title, 120))}</h1>\n<p><b>{escape(headline(comparison))}</b></p>\n"
    )
    later, earlier = (escape(printable(str(capture.path), 200)) for capture in (comparison.after, comparison.before))
    yield f'<p class="muted">{later} compared with {earlier}</p>\n<dl class="figures">'
    for label, figure, how in (
        ("allocated at its peak", comparison.peak, f"requested bytes · {report.exactness}"),
        ("resident at its peak", comparison.resident, report.resident_exactness),
    ):
        if figure.before is not None and figure.after is not None:
            value = f"{size(figure.before)} → {size(figure.after)}"
            yield _figure(label, value, f"{figure_words(figure)} · {how}")
    yield "</dl>\n"
    yield from _drawing(after)
    if comparison.lines:
        yield from _changed_lines(comparison)
    yield f"{_NO_SCRIPTS}</main>"


def _changed_lines(comparison: MatchedComparison) -> Iterator[str]:
    yield f"<h2>Lines that changed most, {escape(snapshot_words(comparison))}</h2>\n"
    yield (
        '<div class="scroll-x"><table><thead><tr><th scope="col">Change</th><th scope="col">Before</th><th'
        ' scope="col">After</th>'
    )
    yield (
        '<th scope="col">State</th><th scope="col" class="wide">Line of your own code, with everything it'
        " called</th></tr></thead>\n<tbody>\n"
    )
    for change in comparison.lines[:_LINES]:
        where = frame_text(change.frames[-1], 160) if change.frames else "[no Python frame]"
        yield (
            f"<tr><td>{signed_size(change.bytes)}</td><td>{size(change.before_bytes)}</td><td>{size(change.after_bytes)}</td>"
            f'<td>{change.state}</td><td class="wide"><code>{escape(where)}</code></td></tr>\n'
        )
    yield "</tbody></table></div>\n"


def _facts(report: Report) -> str:
    if report.capture.device is not None:
        return (
            f"memory of {report.capture.device} over {seconds(report.capture.process.duration_ns)} ·"
            f" {source_words(report.capture)}"
        )
    allocator = report.capture.facts.get("allocator", "")
    comparison = f" · allocator: {printable(allocator, 200)}" if allocator else ""
    return " · ".join(filter(None, [f"{report.process_words}{comparison}", report.own_code_words]))


def _figures(report: Report) -> Iterator[str]:
    capture, peak, resident = report.capture, report.capture.peak, report.capture.resident
    if not capture.is_timeline:
        note = f"{report.exactness(peak)} · requested bytes · {peak.allocated_blocks:,} blocks"
        yield _figure("allocated at its peak", size(peak.allocated_bytes), note)
    if capture.device is None:
        overhead = f", and {size(resident.overhead_bytes)} overhead of hiwater" if resident.overhead_bytes else ""
        yield _figure(
            "resident at its peak", size(resident.program_peak_bytes), f"{resident_exactness(capture)}{overhead}"
        )
    elif capture.reserved_peak_bytes is not None:
        yield _figure("reserved at its peak", size(capture.reserved_peak_bytes), "taken from the driver")
    for device in capture.devices:
        if device.peak_allocated_bytes is not None:
            held = ", ".join(f"{size(peak)} {quantity}" for quantity, peak in device.peaks()[1:])
            note = f"{'exact' if device.exact else 'at least'}{' · ' if held else ''}{held}"
            yield _figure(
                f"on {escape(printable(device.name, 40))} at its peak", size(device.peak_allocated_bytes), note
            )
    if not capture.is_timeline:
        end = capture.end
        yield _figure("allocated at the end", size(end.allocated_bytes), f"{end.allocated_blocks:,} blocks never freed")


def _figure(label: str, value: str, note: str) -> str:
    return (
        f'<div class="figure main"><dt>{label}</dt><dd><b>{value}</b> <span>{escape(printable(note))}</span></dd></div>'
    )


def _drawing(report: Report) -> Iterator[str]:
    """Memory over time: a stacked area for the kinds, and a line for resident memory."""
    line, duration = report.capture.timeline, max(1, report.capture.process.duration_ns)
    if not len(line):
        return
    other, name = line.resident_bytes, "resident"
    if report.capture.device is not None:
        other, name = line.kind_bytes["reserved"], "reserved"
    most = max(1, int(other.max()), int(line.allocated_bytes.max()))
    place = np.linspace(0, len(line) - 1, min(len(line), _MOST_SAMPLES)).astype(np.int64)
    x = _LEFT + (_WIDTH - _LEFT) * np.minimum(line.at_ns[place] / duration, 1.0)
    words = f"memory over {seconds(report.capture.process.duration_ns)}: at most {size(most)}"
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _FOOT}" role="img" aria-label="{words}" font-family="sans-serif">\n'
    for part in (0.25, 0.5, 0.75, 1.0):
        y = _y(np.array([int(most * part)]), most)[0]
        yield f'<path class="axis" stroke="#e4e9ee" d="M{_LEFT} {y:.1f}H{_WIDTH}"/>'
        yield (
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" font-size="11"'
            f' fill="#586673">{size(int(most * part))}</text>\n'
        )
    below = np.zeros(len(place), np.int64)
    for number, kind in enumerate(COUNTED_KINDS):
        top = below + line.kind_bytes[kind][place]
        if line.kind_bytes[kind].any():
            path = _steps(x, _y(top, most)) + "L" + _steps(x[::-1], _y(below, most)[::-1])[1:]
            yield (
                f'<path class="k{number}" fill="{_COLOURS[number]}"'
                f' d="{path}Z"><title>{KIND_WORDS[kind]}</title></path>\n'
            )
        below = top
    yield (
        '<path class="resident" fill="none" stroke="#17212b" stroke-width="1.5"'
        f' d="{_steps(x, _y(other[place], most))}"><title>{name}</title></path>\n'
    )
    for at, anchor in ((0, "start"), (duration, "end")):
        where = _LEFT + (_WIDTH - _LEFT) * at / duration
        yield (
            f'<text x="{where:.0f}" y="{_HEIGHT + 14}" text-anchor="{anchor}" font-size="11"'
            f' fill="#586673">{seconds(at)}</text>'
        )
    yield "</svg>\n"


def _y(values: Ints, most: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 6 + (_HEIGHT - 6) * (1 - values / most)


def _steps(x: np.ndarray[tuple[int], np.dtype[np.float64]], y: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    return "M" + "L".join(f"{one:.1f} {other:.1f}" for one, other in zip(x.tolist(), y.tolist(), strict=True))


def _table(report: Report, ranking: Ranking) -> Iterator[str]:
    whole = report.holdings.total_bytes
    yield f"<h2>Your lines, {escape(report.snapshot_words)}</h2>\n"
    yield (
        '<div class="scroll-x"><table><thead><tr><th scope="col">Size</th><th scope="col">Share</th><th'
        ' scope="col">Never touched</th>'
    )
    yield (
        '<th scope="col">Blocks</th><th scope="col" class="wide">Line of your code, with everything it'
        " called</th></tr></thead>\n<tbody>\n"
    )
    for line in ranking.rows[:_LINES]:
        untouched = size(line.untouched_bytes) if line.untouched_bytes else ""
        yield (
            f"<tr><td>{size(line.bytes)}</td><td>{share(line.bytes, whole)}</td><td>{untouched}</td>"
            f"<td>{line.blocks:,}</td>"
            f'<td class="wide">{BEFORE[line.group]}<code>{escape(frame_text(line.frame, 160))}</code></td></tr>\n'
        )
    yield "</tbody></table></div>\n"
