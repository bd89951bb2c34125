"""Sizes as people write them and as people read them, and how exact they are, in the one phrase that every message and
report has for it (docs/glossary.md). The one place that knows the units."""

from __future__ import annotations

import hiwater

UNITS = ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB"), (1 << 50, "PiB"))
"""The IEC units of bytes: (bytes, name), the smallest first."""
BYTES_PER_MIB = 1 << 20
LARGEST = (1 << 63) - 1
"""The kernel counts bytes in 63 bits."""

_DECIMAL = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FACTORS = {**_DECIMAL, **{name.upper(): factor for factor, name in UNITS}}
_REMEDY = "write a number and a unit, such as 64KiB (65536 bytes), 1MB (1000000 bytes) or 500_000"

LOST = "not exact: events were lost"
MISSED = "at least: some calls could not be recorded"
NOT_MEASURED = "not measured"


def parse_size(text: str) -> int:
    """Return the bytes that `text` (`64KiB`, `1.5 MB`, `500_000`) stands for, rounded down.

    Raises BadSize when the number or the unit is not one, and for sizes below zero or above LARGEST.
    """
    stripped = text.strip()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = stripped[len(number) :].strip()
    factor = _FACTORS.get(unit.upper())
    if factor is None:
        raise hiwater.errors.BadSize(f"{text!r} is not a size: {unit!r} is not a unit", _REMEDY)
    try:
        count = int(number) * factor
    except ValueError:
        try:
            count = int(float(number) * factor)
        except (ValueError, OverflowError):
            raise hiwater.errors.BadSize(f"{text!r} is not a size", _REMEDY) from None
    if count < 0:
        raise hiwater.errors.BadSize(f"{text!r} is below zero", _REMEDY)
    if count > LARGEST:
        raise hiwater.errors.BadSize(f"{text!r} is more than any memory", _REMEDY)
    return count


def format_size(count: int, decimals: int | None = None) -> str:
    """Return `count` bytes in IEC units: `0 B`, `1.21 GiB`, `64.0 KiB`.

    Without `decimals` a size has three significant digits. With `decimals` it always has so many after the point, and
    figures below one another compare.
    """
    if abs(count) < 1024:
        return f"{count} B"
    limit = 1024 if decimals is not None else 999.5
    factor, unit = next((one for one in UNITS[1:] if abs(count) < limit * one[0]), UNITS[-1])
    value = count / factor
    if decimals is None:
        decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f} {unit}"


def accuracy_of_peak(*, exact: bool, error_bytes: int) -> str:
    """The phrase for a peak that the kernel counted: "exact" or "within 768 KiB"; "at least" for the highest sample."""
    if not exact:
        return "at least"
    return f"within {format_size(error_bytes)}" if error_bytes else "exact"


def accuracy_of_estimate(standard_error_bytes: int) -> str:
    """The phrase for a figure from sampled allocations: "± 1.20 MiB (standard error)"."""
    return f"± {format_size(standard_error_bytes)} (standard error)"
