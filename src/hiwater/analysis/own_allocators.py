"""Libraries that bring an allocator of their own: its blocks are not seen one by one, but the mappings that it cuts
them from are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hiwater.analysis.naming import mapping_library
from hiwater.capture import Snapshot
from hiwater.capture.format import CODE_LABEL

_SMALLEST = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class _Known:
    package: str
    allocator: str
    remedy: str


_KNOWN = {
    r"libarrow\.so": _Known(
        "pyarrow",
        "mimalloc or jemalloc",
        "ARROW_DEFAULT_MEMORY_POOL=system in the environment makes each block visible",
    ),
    r"_?polars.*\.so": _Known("polars", "jemalloc", "polars has no switch for it"),
    r"_?duckdb.*\.so": _Known("duckdb", "jemalloc", "duckdb has no switch for it"),
}


def notes(peak: Snapshot) -> list[str]:
    """A sentence for each known library whose mappings held 1 MiB or more at the peak."""
    tables = peak.tables
    codes, nodes = tables["codes"], tables["nodes"]
    held: dict[str, int] = {}
    labels = {
        number: library
        for number, record in enumerate(codes)
        if int(record["kind"]) == CODE_LABEL and (library := mapping_library(tables.string(int(record["file"]))))
    }
    if not labels:
        return []
    holdings = peak.holdings("mapping")
    for code, count in zip(nodes["code"][holdings.node].tolist(), holdings.bytes.tolist(), strict=True):
        if code in labels:
            held[labels[code]] = held.get(labels[code], 0) + count
    return [
        f"{known.package} has an allocator of its own ({known.allocator}), so hiwater does not see its blocks: memory"
        f" that {library} mapped for them and that was touched counts for the line that caused the mapping;"
        f" {known.remedy}"
        for library, count in sorted(held.items(), key=lambda item: -item[1])
        for pattern, known in _KNOWN.items()
        if count >= _SMALLEST and re.match(pattern, library)
    ]
