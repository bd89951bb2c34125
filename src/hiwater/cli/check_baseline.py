"""The baseline of `hiwater check`, in each of the forms that it may have, and how it is updated."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hiwater.cli import report as report_verb
from hiwater.errors import BadBaseline, BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hiwater.analysis.baseline import Baseline, Entry
    from hiwater.analysis.check import Measured

_BY_DEFAULT = ("peak_bytes", "allocated_bytes", "allocations", "kept_bytes", "device_bytes")
"""What --update writes of a new program. Resident memory depends on the machine: it is written if --figures names
it."""


@dataclass(frozen=True)
class Before:
    """The programs of a baseline by name. `file` is the baseline that can be updated; None if it is in another form."""

    path: str | None
    programs: dict[str, Measured] = field(default_factory=dict)
    file: Baseline | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Where it was measured; empty if that is not known."""
        if self.file is not None:
            return dict(self.file.environment) if self.file.entries else {}
        return environment_of(self.programs)


def environment_of(programs: Mapping[str, Measured]) -> dict[str, str]:
    """Where the first of these programs was measured; empty if none has a capture."""
    from hiwater.analysis import check

    return next((check.environment_of(one.run) for one in programs.values() if one.run is not None), {})


def read(path: str | None, *, may_miss: bool) -> Before:
    """The baseline at `path`: a file of our own, a JSON report, a capture, or a folder of captures. One that may be
    missing is empty.

    Raises BadBaseline, and what opening a capture raises.
    """
    from hiwater.analysis import baseline, check

    if path is None or (may_miss and not os.path.exists(path)):
        return Before(path, {}, baseline.Baseline({}))
    if _is_folder_of_captures(path):
        found = sorted(Path(path).glob("*.hiw"))
        return Before(path, {one.stem: check.measured(report_verb.open_run([str(one)])) for one in found})
    content = _json_content(path)
    if content is None:
        run = report_verb.open_run([path])
        return Before(path, {check.program_name(run.captures[0].process.argv): check.measured(run)})
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    report = document[0] if isinstance(document, list) and document else document
    if isinstance(report, dict) and str(report.get("schema", "")).startswith("hiwater.report/"):
        return Before(path, check.from_report(document, path))
    file = baseline.parse(content, path)
    return Before(path, {name: check.Measured(entry) for name, entry in file.entries.items()}, file)


def update(before: Before, now: Mapping[str, Measured], figures: Sequence[str]) -> None:
    """Write the figures of `now` into the baseline. Raises BadRequest for one in another form, and OutputFailed."""
    if before.file is None or before.path is None:
        raise BadRequest(f"{before.path!r} is not a baseline that can be updated", "give --baseline a file *.json")
    entries = {name: _entry(one.entry, before.file.entries.get(name), figures) for name, one in now.items()}
    before.file.updated(entries, environment_of(now)).write(before.path)


def _entry(now: Entry, before: Entry | None, figures: Sequence[str]) -> Entry:
    """What is written: the figures asked for; otherwise those that the entry has; otherwise those that repeat."""
    from dataclasses import replace

    chosen = figures or (before.figures if before is not None and before.figures else _BY_DEFAULT)
    kept = {figure: count for figure, count in now.figures.items() if figure in chosen}
    return replace(now, figures=kept)


def _is_folder_of_captures(path: str) -> bool:
    """Whether it is a folder, and not the folder of one run."""
    return os.path.isdir(path) and not path.rstrip("/").endswith(".hiw.d")


def _json_content(path: str) -> bytes | None:
    """The content of a file that looks like JSON, or that is missing; None for a capture."""
    try:
        with open(path, "rb") as stream:
            start = stream.read(64)
            if start.lstrip()[:1] in (b"{", b"["):
                return start + stream.read()
    except IsADirectoryError:
        return None
    except OSError as error:
        raise BadBaseline(
            f"the baseline {path!r} cannot be read ({error.strerror})", "check the path, or make one with --update"
        ) from error
    return None
