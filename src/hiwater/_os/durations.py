"""Durations as people write them. The one place that knows the units."""

from __future__ import annotations

import hiwater

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0}
_LONGEST_SECONDS = 1e9


def parse_duration(text: str) -> float:
    """Return the seconds that `text` (`1ms`, `0.1`, `5 min`) stands for. Raises UsageError unless they are above 0."""
    stripped = text.strip()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    factor = _SECONDS.get(stripped[len(number) :].strip())
    try:
        seconds = float(number) * factor if factor is not None else 0.0
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < _LONGEST_SECONDS:
        raise hiwater.errors.UsageError(
            f"{text!r} is not a duration", "write a number above 0 and a unit, such as 1ms, 0.1, 30s or 5min"
        )
    return seconds


def checked_interval(seconds: object) -> float:
    """Return `seconds` as a float. Raises BadInterval, which is a ValueError, unless it is a finite number above 0."""
    try:
        value = float("nan") if isinstance(seconds, str | bytes) else float(seconds)  # type: ignore[arg-type]  # refused below
    except (TypeError, ValueError, OverflowError):
        value = float("nan")
    if not 0 < value < _LONGEST_SECONDS:
        raise hiwater.errors.BadInterval(
            f"an interval of {seconds!r} is not a number of seconds above 0", "write one such as 0.01"
        )
    return value
