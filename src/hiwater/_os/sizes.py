"""Sizes as people write them and as people read them. The one place that knows the units."""

from __future__ import annotations

import hiwater

_DECIMAL = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BINARY = {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_FACTORS = {**_DECIMAL, **_BINARY}
_REMEDY = "write a number and a unit, such as 64KiB (65536 bytes), 1MB (1000000 bytes) or 500_000"


def parse_size(text: str) -> int:
    """Return the bytes that `text` (`64KiB`, `1.5 MB`, `500_000`) stands for, rounded down.

    Raises BadSize when the number or the unit is not one, and for sizes below zero.
    """
    stripped = text.strip()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = stripped[len(number) :].strip().upper()
    factor = _FACTORS.get(unit)
    if factor is None:
        raise hiwater.errors.BadSize(f"{text!r} is not a size, {unit!r} is no unit", _REMEDY)
    try:
        count = int(number) * factor
    except ValueError:
        try:
            count = int(float(number) * factor)
        except (ValueError, OverflowError):
            raise hiwater.errors.BadSize(f"{text!r} is not a size", _REMEDY) from None
    if count < 0:
        raise hiwater.errors.BadSize(f"{text!r} is below zero", _REMEDY)
    return count


def format_size(count: int) -> str:
    """Return `count` bytes in IEC units with three significant digits: `0 B`, `1.21 GiB`, `64.0 KiB`."""
    if abs(count) < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(value) < 999.5 or unit == "TiB":
            break
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f} {unit}"
