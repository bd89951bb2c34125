"""Apache Parquet, the columns of the CSV with their types; units and meanings are in the schema's metadata. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from hiwater.errors import ExtraMissing
from hiwater.report.export.columns import COLUMN_WORDS, EXPORTER, UNITS, bytes_below, columns_of, measures, tables
from hiwater.report.request import Report

_NUMBERS = ("pid", "line", *UNITS)
_REPEATED = ("host", "kind", "thread", "function", "file")


def write(reports: Sequence[Report], stream: TextIO) -> None:
    """Write one table with the rows of all reports. Recursion that is too deep is written once. Raises ExtraMissing, ReportTooLarge."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ExtraMissing.of("pyarrow", "arrow", error) from error
    schema, parts = _schema(pa, reports), tables(reports)
    with parquet.ParquetWriter(
        bytes_below(stream), schema, use_dictionary=list(_REPEATED), compression="zstd"
    ) as writer:
        for part in parts:
            writer.write_table(pa.table(list(part.values), schema=schema))


def _schema(pa: Any, reports: Sequence[Report]) -> Any:
    fields = [
        pa.field(
            name,
            pa.int64() if name in _NUMBERS else pa.string(),
            nullable=False,
            metadata={"description": COLUMN_WORDS[name], **({"unit": UNITS[name]} if name in UNITS else {})},
        )
        for name in columns_of(reports[0])
    ]
    said = {"creator": EXPORTER}
    for report in reports:
        said[f"measures.{report.capture.process.pid}"] = measures(report)
    return pa.schema(fields, metadata=said)
