"""The sentences that everything leads with: how much was allocated and which line to change, and before that, whether
memory was refused. The last lines of a run, reports, the page, JSON and notebooks have them from here."""

from __future__ import annotations

from hiwater._os.sizes import format_size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class TopLine(TypedDict):
        """The row to change first: `analysis.user_lines.Ranking.headline`, and what the engine finds. `bytes` are
        without the `untouched_bytes` of the line; `imports_bytes` and `all_untouched_bytes` are sums over all lines,
        and `other_bytes` over code that none of the user's lines called; 0 where no line is the user's."""

        group: str
        file: str
        line: int
        function: str
        bytes: int
        untouched_bytes: int
        imports_bytes: int
        other_bytes: int
        all_untouched_bytes: int


OTHER_CODE = "code that none of your lines called"
"""What every report calls what no line of the user's own code called."""
BEFORE = {"line": "", "waited": "waited for at ", "import": "import at ", "other": f"{OTHER_CODE}: "}
"""What stands before the place of a row of each group."""
WORTH_TELLING = 1 << 20  # bytes


def sentence(lead: str, top: TopLine | None, place: str, whole: int, remark: str = "") -> tuple[str, str, str]:
    """The sentence that `lead` begins, which says that `whole` bytes were allocated, in three parts; the second is
    `place`, where the row `top` is, and may be empty. `remark` ends the row's figure."""
    if top is None or not whole:
        return lead, "", ""

    def part(count: int) -> str:
        return f"{_size(count)} ({100 * count / whole:.1f} %)"

    if top["untouched_bytes"] > top["bytes"] and top["group"] in ("line", "waited"):
        untouched = f": {part(top['untouched_bytes'])}{remark}, allocated and never touched"
        return f"{lead}; most {BEFORE[top['group']] or 'at '}", place, untouched
    most = "most"
    if top["all_untouched_bytes"] >= WORTH_TELLING:
        lead, most = f"{lead}, {_size(top['all_untouched_bytes'])} of it never touched", "most of the rest"
    if top["group"] == "import":
        return (
            f"{lead}; {most} by imports: {part(top['imports_bytes'])}{remark}, {_size(top['bytes'])} of it at ",
            place,
            "",
        )
    if top["group"] == "other" and top["other_bytes"]:
        by = f"{OTHER_CODE}: {part(top['other_bytes'])}{remark}"
        return f"{lead}; {most} by {by}, {_size(top['bytes'])} of it at ", place, ""
    waited = "waited for at " if top["group"] == "waited" else "at "
    return f"{lead}; {most} {waited}", place, f": {part(top['bytes'])}{remark}"


def refused_requests(count: int, last_bytes: int, place: str) -> str:
    """The sentence on `count` refused requests for memory, the last of them for `last_bytes` at `place`, a line with
    its function."""
    times = "a request for memory was" if count == 1 else f"{count:,} requests for memory were"
    last = "" if count == 1 else "the last "
    return f"{times} refused, {last}of {_size(last_bytes)} at {place}"


def _size(count: int) -> str:
    return format_size(count, 1)
