"""The parts of a report on limits: refused requests, and how near the process was to each limit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.text import Text

from hiwater._os.headline import refused_requests
from hiwater.analysis.user_lines import rows_of_paths
from hiwater.capture import Frame
from hiwater.capture.limits import suspects
from hiwater.capture.markers import Marker
from hiwater.report.formatting import frame_text, place_text, printable, seconds, share, size
from hiwater.report.request import Report
from hiwater.report.text.terminal import title

_SHOWN = 5
_MOST_KEPT = 10_000  # the recorder keeps no more


def refusals(report: Report) -> Iterator[Text]:
    """The refused requests for memory, the last ones with their lines."""
    refused = report.capture.refusals
    if not refused:
        return
    times = "once" if len(refused) == 1 else f"{len(refused):,} times" + (" or more" * (len(refused) >= _MOST_KEPT))
    yield title("Memory was refused", f"{times}; `--at oom` shows what was held then")
    rounded = " (rounded up)" if report.capture.device else ""  # torch's history has the size of the block
    for marker in refused[-_SHOWN:]:
        yield Text.assemble(
            f"  {size(marker.value):>11}{rounded} asked for at {seconds(marker.at_ns)}: ",
            (frame_text(line_of(report, marker), 90), "bold"),
        )


def refused_in_brief(report: Report) -> Iterator[Text]:
    """One sentence on the requests that were refused, the same as at the end of the run."""
    if report.capture.refusals:
        yield Text(refused_sentence(report, report.capture.facts.get("cwd", "")), "bold red")


def refused_sentence(report: Report, folder: str) -> str:
    """The sentence, with paths relative to `folder`; "" where no request was refused."""
    refused = report.capture.refusals
    if not refused:
        return ""
    frame = line_of(report, refused[-1])
    where = place_text(frame, folder, 100)
    function = f" in {printable(frame.function, 60)}" if frame.line else ""
    return refused_requests(len(refused), refused[-1].value, f"{where}{function}")


def line_of(report: Report, refused: Marker) -> Frame:
    """The line whose row has what the request's call path holds: the user's own, if there is one."""
    rows = rows_of_paths(report.capture.tables, np.array([refused.node], np.int64), np.zeros(1, np.int64))
    frame = rows.rows[int(rows.row[0])][1]
    return frame if frame.function else Frame("[no Python frame]", "", 0)


def nearness(report: Report) -> Iterator[Text]:
    """Each limit with its last and its highest use. Empty if nothing was limited and nothing is suspected."""
    capture = report.capture
    rows, found, shown = capture.pressure, suspects(capture.tables), list(_limits(report))
    if not rows or not (shown or found):
        return
    ended = "the kill" if capture.process.ended == "killed" else "the end"
    last_ms = max(0, capture.process.duration_ns - rows[-1].at_ns) // 1_000_000
    yield title("How near to the limits", f"the last figures are from {last_ms} ms before {ended}")
    yield from shown
    available = [row.available_bytes for row in rows if row.available_bytes is not None]
    if available:
        yield Text(
            f"  {size(available[-1]):>11}  still available on the machine; at the least {size(min(available))}", "dim"
        )
    for suspect in found:
        yield Text.assemble(("  ! ", "bold yellow"), suspect)


def _limits(report: Report) -> Iterator[Text]:
    rows = report.capture.pressure
    asked = " (--limit)" if "limit_bytes" in report.capture.facts else ""
    kinds = (
        ("address_space", f"of address space{asked}"),
        ("cgroup", "in its cgroup, others in it and page cache included"),
    )
    for name, words in kinds:
        pairs = ((getattr(row, f"{name}_bytes"), getattr(row, f"{name}_limit")) for row in rows)
        limited = [(used, limit) for used, limit in pairs if used is not None and limit]
        if limited:
            used, limit = limited[-1]
            most = max(used for used, _ in limited)
            yield Text(
                f"  {size(used):>11}  {words}, {share(used, limit)} of the limit of {size(limit)}; "
                f"at the most {share(most, limit)}"
            )
