"""Columns of pandas with one Python object for each value."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hiwater.analysis.advice.finding import Finding, Rule, Saving
from hiwater.analysis.advice.recorded import Recorded

_MANY, _SMALL_BYTES = 50_000, 256
_MAKERS = ("pandas/io/parsers/", "pandas/core/dtypes/astype.py", "pandas/core/arrays/string_.py")
_OTHERWISE = ("category", "pyarrow", "Categorical")
_EACH = 24
"""What each object needs beside its value, in bytes: at least 16 of header, and a pointer of 8 in the column."""


def object_columns(recorded: Recorded) -> Iterator[Finding]:
    """A line with very many small objects that pandas' parsers, or its conversion to text, made."""
    made = recorded.is_kind("python") & recorded.through(lambda file, _: any(part in file for part in _MAKERS))
    for frame, accounts in recorded.rows(made):
        held = recorded.at_peak(accounts)
        blocks = int(np.maximum(recorded.peak.blocks[accounts], 0).sum())
        said = recorded.source_line(frame)
        if blocks < _MANY or held > blocks * _SMALL_BYTES or any(word in said for word in _OTHERWISE):
            continue
        evidence = (
            recorded.figure("Python objects of a column", held, "at the peak"),
            recorded.figure("in", blocks, "at the peak", "blocks"),
        )
        bound = recorded.saved_at_peak(accounts, min(1.0, blocks * _EACH / max(1, held)))
        saving = Saving(bound.least_bytes, held, bound.measures)
        yield Finding(
            Rule.object_column, frame, evidence, saving,
            "Keep the values as numbers or dates if they are; otherwise read them with pyarrow as dtype string[pyarrow]. "
            "Where few values repeat, dtype category saves more.",
        )  # fmt: skip
