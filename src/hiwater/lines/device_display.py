"""The table of a device's line profile, as text and as HTML with bars: the figures of each line, and its source."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from html import escape

from hiwater._os.sizes import format_size
from hiwater.lines.report import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hiwater.lines.device_columns import Column, Row, Value

_COLOURS = ("#7aa6da", "#e7a66c", "#8cc68c", "#d98c8c", "#b09ad0", "#b89a8c")


@dataclass(frozen=True, slots=True)
class FunctionRows:
    """One function of a display: its place, and the figures of each of its lines."""

    name: str
    file: str
    first_line: int
    last_line: int
    rows: dict[int, Row]

    def lines(self) -> Iterable[tuple[int, str]]:
        """Number and source of every line; if the source is unknown, only of the lines that ran."""
        known = linecache.getline(self.file, self.first_line)
        numbers = range(self.first_line, self.last_line + 1) if known else sorted(self.rows)
        return [(number, printable(linecache.getline(self.file, number).rstrip())) for number in numbers]


class LinesDisplay:
    """The result of `LineProfiler.display()`: a table as text, in a notebook as HTML with bars, and with `to_dict()`
    as data."""

    def __init__(
        self,
        functions: Sequence[FunctionRows],
        columns: Sequence[Column],
        *,
        notes: Sequence[str] = (),
        empty: str = "",
        size: Callable[[int], str] = format_size,
    ) -> None:
        """`empty` says why there is nothing to show. `notes` are shown below the tables. `size` formats bytes."""
        self.functions = list(functions)
        self.columns = list(columns)
        self.notes = list(notes)
        self.empty = empty
        self._size = size

    def __repr__(self) -> str:
        if not self.functions:
            return f"No data collected{': ' if self.empty else ''}{self.empty}\n"
        notes = "\n".join(self.notes)
        return "\n\n".join(self._text(function) for function in self.functions) + (f"\n{notes}\n" if notes else "")

    def _repr_html_(self) -> str:
        if not self.functions:
            return f"<p>No data collected{': ' if self.empty else ''}{escape(self.empty)}</p>"
        tops = [self._top(column) for column in self.columns]
        tables = "\n".join(self._html(function, tops) for function in self.functions)
        return tables + "".join(f"<p><small>{escape(note)}</small></p>" for note in self.notes)

    def to_dict(self) -> dict[str, object]:
        """Return everything as plain data: for each function its lines, each with a value for every column."""
        return {
            "columns": [column.name for column in self.columns],
            "functions": [
                {
                    "name": function.name,
                    "file": function.file,
                    "lines": {
                        number: {column.name: column.read(row) for column in self.columns}
                        for number, row in sorted(function.rows.items())
                    },
                }
                for function in self.functions
            ],
            "notes": self.notes,
        }

    def _text(self, function: FunctionRows) -> str:
        lines = list(function.lines())
        cells = [[*self._cells(function.rows.get(number)), str(number)] for number, _ in lines]
        heads = [[*column.name.split(".")] for column in self.columns] + [["line"]]
        height = max(map(len, heads))
        heads = [[*head, *[""] * (height - len(head))] for head in heads]
        widths = [max(*map(len, head), *(len(row[index]) for row in cells)) for index, head in enumerate(heads)]
        text = [
            " ".join(part[level].rjust(width) for part, width in zip(heads, widths, strict=True))
            + ("  code" if level == 0 else "")
            for level in range(height)
        ]
        for row, (_, source) in zip(cells, lines, strict=True):
            text.append(" ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + f"  {source}")
        return f"## {function.name}\n\n" + "\n".join(line.rstrip() for line in text) + "\n"

    def _cells(self, row: Row | None) -> list[str]:
        if row is None:
            return [""] * len(self.columns)
        return [self._cell(column, column.read(row)) for column in self.columns]

    def _cell(self, column: Column, value: Value) -> str:
        if value is None:
            return ""
        return self._size(value) if column.is_bytes and isinstance(value, int) else str(value)

    def _top(self, column: Column) -> int:
        values = [column.read(row) for function in self.functions for row in function.rows.values()]
        return max((value for value in values if isinstance(value, int)), default=0)

    def _html(self, function: FunctionRows, tops: Sequence[int]) -> str:
        heads = "".join(f"<th>{escape(column.name).replace('.', '<br>')}</th>" for column in self.columns)
        body = []
        for number, source in function.lines():
            row = function.rows.get(number)
            cells = "".join(
                self._bar(column, column.read(row) if row is not None else None, top, _COLOURS[index % len(_COLOURS)])
                for index, (column, top) in enumerate(zip(self.columns, tops, strict=True))
            )
            code = f'<td style="text-align:left;white-space:pre;font-family:monospace">{escape(source)}</td>'
            body.append(f"<tr>{cells}<td>{number}</td>{code}</tr>")
        return (
            f"<h3><code>{escape(function.name)}</code></h3><table><thead><tr>{heads}<th>line</th>"
            f'<th style="text-align:left">code</th></tr></thead><tbody>{"".join(body)}</tbody></table>'
        )

    def _bar(self, column: Column, value: Value, top: int, colour: str) -> str:
        share = 100 * value / top if isinstance(value, int) and top > 0 and value > 0 else 0
        style = f"background:linear-gradient(90deg,{colour} {share:.1f}%,transparent {share:.1f}%)" if share else ""
        return f'<td style="{style}">{escape(self._cell(column, value))}</td>'
