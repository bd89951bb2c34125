"""Baselines: figures of programs or tests, kept in a small JSON file, and what has become of them since.

Only the standard library is imported: test suites read and write these files, too.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from hiwater import __version__
from hiwater._os.replacing import replacing
from hiwater._os.sizes import UNITS, parse_size
from hiwater.errors import BadBaseline, BadSize, OutputFailed, UsageError

SCHEMA = "hiwater-baseline"
VERSION = 1
FIGURES = {
    "peak_bytes": "allocated at the peak",
    "allocated_bytes": "allocated over the run",
    "allocations": "allocations over the run",
    "kept_bytes": "allocated at the end",
    "resident_bytes": "resident at the peak",
    "device_bytes": "of devices at the peak",
}
"""The figures of an entry, in the order in which they are written and compared, each with what it measures."""
_COUNTS = ("allocations",)
_REMEDY = "correct the file, or write it anew with --update"

Verdict = Literal["worse", "better", "same", "unknown", "new", "missing"]
"""`same` is within the tolerance or within the errors; `unknown` is a lower bound that is not worse; `new` has nothing
before, `missing` nothing now."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """By how much a figure may differ: by the larger of `bytes` and of `relative` times the figure before.

    None is the default for that part: no bytes if `relative` is given, 5 % if a count is compared and only `bytes` is
    given.
    """

    bytes: int | None = None
    relative: float | None = None

    def of(self, figure: str, before: int) -> int:
        """The difference that is tolerated for `figure`, which was `before`: bytes, or a count."""
        if figure in _COUNTS:
            return math.floor(before * (_DEFAULT_RELATIVE if self.relative is None else self.relative))
        return max(self.bytes or 0, math.floor(before * (self.relative or 0.0)))

    def __str__(self) -> str:
        parts = [] if self.relative is None else [f"{self.relative * 100:.10g}%"]
        if self.bytes is not None:
            factor, unit = next(one for one in reversed(UNITS) if self.bytes % one[0] == 0)
            parts.append(f"{self.bytes // factor}{unit}" if factor > 1 and self.bytes else str(self.bytes))
        return ",".join(parts)


_DEFAULT_RELATIVE = 0.05
DEFAULT_TOLERANCE = Tolerance(bytes=64 << 10, relative=_DEFAULT_RELATIVE)
"""For figures that hiwater counted itself. They repeat to a few hundred bytes."""
_DEFAULT_COUNT = 100  # allocations: what the interpreter and libraries cache or not differs by some tens
DEFAULT_RESIDENT_TOLERANCE = Tolerance(bytes=8 << 20, relative=0.1)
"""For resident and device memory, which depends on the kernel, the allocator and the driver as well."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The figures of one program or test, by the names in `FIGURES`; those that are unknown are absent.

    `errors` has for estimates how far they may be off: two standard errors of a sampled figure, the bound of a resident
    one. `at_least` are figures that are lower bounds.
    """

    figures: Mapping[str, int]
    tolerance: Tolerance | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    at_least: frozenset[str] = frozenset()

    def within(self, figure: str, default: Tolerance | None) -> int:
        """The difference that is tolerated for a figure of this entry: its own tolerance, else `default`, else that
        of hiwater."""
        before, given = self.figures[figure], self.tolerance or default
        if given is not None:
            return given.of(figure, before)
        if figure in _COUNTS:
            return max(_DEFAULT_COUNT, DEFAULT_TOLERANCE.of(figure, before))
        of_hiwater = DEFAULT_RESIDENT_TOLERANCE if figure in ("resident_bytes", "device_bytes") else DEFAULT_TOLERANCE
        return of_hiwater.of(figure, before)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one entry, before and now; None where it is not known.

    `allowed` is the highest value that is no failure (None without a value before). `error` is by how much the
    difference may be chance. `at_least` says that `now` is a lower bound.
    """

    name: str
    figure: str
    before: int | None
    now: int | None
    allowed: int | None
    error: int
    verdict: Verdict
    at_least: bool = False

    @property
    def change(self) -> int:
        """Now − before; 0 if one of them is not known."""
        return 0 if self.before is None or self.now is None else self.now - self.before

    @property
    def is_within_error(self) -> bool:
        """Whether it is the same only because the difference may be chance: it is above what is allowed, and within
        the errors."""
        return self.verdict == "same" and self.allowed is not None and (self.now or 0) > self.allowed


def this_environment() -> dict[str, str]:
    """What the figures of a program depend on besides the program: this Python, this platform and this hiwater."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system().lower()}-{platform.machine()}",
        "hiwater": __version__,
    }


@dataclass(frozen=True, slots=True)
class Baseline:
    """The entries of a baseline by name, and the environment in which they were measured: `python`, `platform`,
    `hiwater`."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=this_environment)

    def updated(self, now: Mapping[str, Entry], environment: Mapping[str, str] | None = None) -> Baseline:
        """This baseline with the entries of `now` in place of its own, measured in `environment` (None: here). An
        entry's tolerance stays."""
        entries = dict(self.entries)
        for name, entry in now.items():
            kept = entries[name].tolerance if name in entries else None
            entries[name] = replace(entry, tolerance=entry.tolerance or kept)
        return Baseline(entries, environment or this_environment())

    def as_text(self) -> str:
        """The file's content: names in order, a figure a line, so that a changed figure is one changed line."""
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "environment": dict(sorted(self.environment.items())),
            "entries": {name: _as_json(self.entries[name]) for name in sorted(self.entries)},
        }
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    def write(self, path: str | PathLike[str]) -> None:
        """Replace the file as a whole. Raises OutputFailed."""
        try:
            with replacing(Path(path)) as stream:
                stream.write(self.as_text())
        except OSError as error:
            raise OutputFailed(
                f"the baseline cannot be written to {str(path)!r} ({error.strerror})", "check the folder and its rights"
            ) from error


def parse_tolerance(text: str) -> Tolerance:
    """The tolerance for `5%`, `64KiB`, or both with a comma between them, of which the larger holds. Raises
    UsageError or BadSize."""
    parts = [part.strip() for part in text.split(",")]
    percents = [part[:-1] for part in parts if part.endswith("%")]
    sizes = [part for part in parts if not part.endswith("%")]
    if len(percents) > 1 or len(sizes) > 1:
        raise UsageError(f"{text!r} is not a tolerance", "write 5%, 64KiB or 5%,64KiB")
    return Tolerance(parse_size(sizes[0]) if sizes else None, _relative(percents[0]) if percents else None)


def _relative(percent: str) -> float:
    try:
        value = float(percent)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise UsageError(f"'{percent}%' is not a percentage of 0 or more", "write 5%, 64KiB or 5%,64KiB")
    return value / 100


def read(path: str | PathLike[str]) -> Baseline:
    """The baseline in a file. Raises BadBaseline if there is none, or if it is something else."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise BadBaseline(
            f"the baseline {str(path)!r} cannot be read ({error.strerror})", "check the path, or make one with --update"
        ) from error
    return parse(content, str(path))


def parse(content: bytes, name: str) -> Baseline:
    """The baseline in the content of the file `name`. Raises BadBaseline."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadBaseline(f"{name!r} is not JSON ({error})", _REMEDY) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise BadBaseline(f"{name!r} is not a baseline of hiwater", f'its "schema" must be "{SCHEMA}"')
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise BadBaseline(f"{name!r} has no version", _REMEDY)
    if version > VERSION:
        raise BadBaseline(f"{name!r} was written by a newer hiwater (version {version})", "install a newer hiwater")
    entries, measured = document.get("entries"), document.get("environment", {})
    if not isinstance(entries, dict) or not isinstance(measured, dict):
        raise BadBaseline(f"'entries' or 'environment' in {name!r} is not an object", _REMEDY)
    return Baseline(
        {key: _read_entry(key, value, name) for key, value in entries.items()},
        {key: str(value) for key, value in measured.items()},
    )


def _read_entry(key: str, value: Any, name: str) -> Entry:
    where = f"the entry {key!r} in {name!r}"
    errors = value.get("errors", {}) if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(errors, dict):
        raise BadBaseline(f"{where} is not an object", _REMEDY)
    for figure, count in [*((one, value[one]) for one in FIGURES if one in value), *errors.items()]:
        if type(count) is not int or count < 0:
            raise BadBaseline(f"{figure!r} of {where} is {count!r} and no whole number of 0 or more", _REMEDY)
    tolerance = value.get("tolerance")
    try:
        allowed = None if tolerance is None else parse_tolerance(tolerance)
    except (BadSize, UsageError, AttributeError) as error:
        raise BadBaseline(f"the tolerance of {where} is {tolerance!r}", 'write "5%", "64KiB" or "5%,64KiB"') from error
    known = {figure: value[figure] for figure in FIGURES if figure in value}
    return Entry(known, allowed, {figure: count for figure, count in errors.items() if figure in known})


def _as_json(entry: Entry) -> dict[str, object]:
    written: dict[str, object] = {figure: entry.figures[figure] for figure in FIGURES if figure in entry.figures}
    errors = {figure: entry.errors[figure] for figure in written if entry.errors.get(figure)}
    if errors:
        written["errors"] = errors
    if entry.tolerance is not None:
        written["tolerance"] = str(entry.tolerance)
    return written


def compare(before: Mapping[str, Entry], now: Mapping[str, Entry], default: Tolerance | None = None) -> list[Compared]:
    """Every figure of every entry on either side: entries in the order of their names, figures in that of `FIGURES`.

    An entry of `before` with a tolerance of its own has that; the others have `default`.
    """
    none = Entry({})
    return [
        compare_figure(name, figure, before.get(name, none), now.get(name, none), default)
        for name in sorted({*before, *now})
        for figure in _either(before.get(name, none), now.get(name, none))
    ]


def _either(*entries: Entry) -> Iterable[str]:
    return (figure for figure in FIGURES if any(figure in entry.figures for entry in entries))


def compare_figure(name: str, figure: str, before: Entry, now: Entry, default: Tolerance | None = None) -> Compared:
    """One figure of an entry. A difference that is within the errors of both sides is the same, whatever the
    tolerance."""
    was, is_now, at_least = before.figures.get(figure), now.figures.get(figure), figure in now.at_least
    errors = before.errors.get(figure, 0), now.errors.get(figure, 0)
    # Bounds add; the errors of independent estimates add as their variances do.
    error = sum(errors) if figure == "resident_bytes" else math.ceil(math.hypot(*errors))
    if was is None or is_now is None:
        return Compared(name, figure, was, is_now, None, error, "new" if was is None else "missing", at_least)
    tolerated = before.within(figure, default)
    difference = is_now - was
    if difference > max(tolerated, error):
        verdict: Verdict = "worse"
    elif at_least:
        verdict = "unknown"
    else:
        verdict = "same" if -difference <= max(tolerated, error) else "better"
    return Compared(name, figure, was, is_now, was + tolerated, error, verdict, at_least)
