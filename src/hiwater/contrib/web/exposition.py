"""OpenMetrics text: families of samples. It loads nothing else, because programs that are measured write it, too."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SUFFIXES = {"counter": "_total", "info": "_info"}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its kind (gauge, counter or info), its unit ("" for a count) and what it measures."""

    name: str
    kind: str
    unit: str
    help: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of the family with this name; labels tell the samples of a family apart."""

    family: str
    labels: Sequence[tuple[str, str]]
    value: str


def write(families: Iterable[Family], samples: Sequence[Sample], stream: TextIO) -> None:
    """Write one exposition. A family without samples is left out."""
    for family in families:
        mine = [sample for sample in samples if sample.family == family.name]
        if not mine:
            continue
        stream.write(f"# TYPE {family.name} {family.kind}\n")
        if family.unit:
            stream.write(f"# UNIT {family.name} {family.unit}\n")
        stream.write(f"# HELP {family.name} {family.help}\n")
        for sample in mine:
            labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.labels)
            stream.write(f"{family.name}{_SUFFIXES.get(family.kind, '')}{{{labels}}} {sample.value}\n")
    stream.write("# EOF\n")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
