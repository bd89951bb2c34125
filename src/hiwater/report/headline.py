"""The first line of a report: how much was allocated at the moment shown, and which line of the user's own code
holds most of it."""

from __future__ import annotations

from hiwater._os.headline import sentence
from hiwater.analysis.user_lines import Ranking, UserLine
from hiwater.analysis.whole_run import is_of_several
from hiwater.report.formatting import place_text, printable, size
from hiwater.report.request import Report

_LONGEST_NAME = 400  # of a file, which is shown whole so that it can be typed


def headline(report: Report, ranking: Ranking, folder: str) -> str:
    """One sentence. Paths are relative to `folder`. The last lines of `hiwater run` lead with the same line and
    figure."""
    return "".join(parts(report, ranking, folder))


def parts(report: Report, ranking: Ranking, folder: str) -> tuple[str, str, str]:
    """The sentence as what is before the place of the line, this place, and what is after it."""
    kind = "" if report.kind == "all" else f" of {report.kind} memory"
    moment = (
        f"at the {report.snapshot.name}" if report.snapshot.name in ("peak", "end") else f"at {report.snapshot_words}"
    )
    if is_of_several(report.capture):
        moment = "at once by all processes"
    return _parts(f"{size(report.holdings.total_bytes)}{kind} allocated {moment}", ranking, folder)


def answer(lead: str, ranking: Ranking, folder: str, remark: str = "") -> str:
    """The sentence that `lead` begins, which says how much was allocated: `ranking` has the lines that hold it.
    `remark` ends its figure."""
    return "".join(_parts(lead, ranking, folder, remark))


def _parts(lead: str, ranking: Ranking, folder: str, remark: str = "") -> tuple[str, str, str]:
    place = "" if ranking.headline is None else _place(ranking.headline, folder)
    return sentence(lead, ranking.top_line, place, ranking.total_bytes, remark)


def _place(row: UserLine, folder: str) -> str:
    where = place_text(row.frame, folder, _LONGEST_NAME)
    return f"{where} in {printable(row.frame.function, _LONGEST_NAME)}" if row.frame.line else where
