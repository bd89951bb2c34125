"""The first line of a report: how much was allocated at the moment shown, and which line of the user's own code holds most of it."""

from __future__ import annotations

from hiwater.analysis.user_lines import OTHER_CODE, Group, Ranking, UserLine, held_by
from hiwater.report.formatting import place_text, printable, share, size
from hiwater.report.request import Report

_WORTH_TELLING = 1 << 20  # bytes


def headline(report: Report, ranking: Ranking, folder: str) -> str:
    """One sentence. Paths are relative to `folder`. The last lines of `hiwater run` lead with the same line and figure."""
    whole = report.holdings.total_bytes
    kind = "" if report.kind == "all" else f" of {report.kind} memory"
    moment = f"the {report.snapshot.name}" if report.snapshot.name in ("peak", "end") else report.snapshot_words
    return answer(f"{size(whole)}{kind} allocated at {moment}", ranking, folder)


def answer(lead: str, ranking: Ranking, folder: str, remark: str = "") -> str:
    """The sentence that `lead` begins, which says how much was allocated: `ranking` has the lines that hold it. `remark` ends its figure."""
    whole, top = ranking.total_bytes, ranking.headline
    if top is None or not whole:
        return lead
    where = _place(top, folder)
    if top.group == Group.line and top.untouched_bytes > top.bytes:
        return f"{lead}; most at {where}: {_part(top.untouched_bytes, whole)}{remark}, allocated and never touched"
    most = "most"
    if ranking.untouched_bytes >= _WORTH_TELLING:
        lead, most = f"{lead}, {size(ranking.untouched_bytes)} of it never touched", "most of the rest"
    apart = {
        Group.imports: ("imports", ranking.imports),
        Group.other: (OTHER_CODE, ranking.other if ranking.lines else ()),
    }
    name, rows = apart.get(top.group, ("", ()))
    if rows:
        return f"{lead}; {most} by {name}: {_part(held_by(rows), whole)}{remark}, {size(top.bytes)} of it at {where}"
    return f"{lead}; {most} at {where}: {_part(top.bytes, whole)}{remark}"


def _part(count: int, whole: int) -> str:
    return f"{size(count)} ({share(count, whole)})"


def _place(row: UserLine, folder: str) -> str:
    if not row.frame.line:
        return place_text(row.frame, folder, 100)
    return f"{place_text(row.frame, folder, 100)} in {printable(row.frame.function, 60)}"
