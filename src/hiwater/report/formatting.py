"""Sizes, times and names as people read them. Names come from the recorded program and are not to be trusted."""

from __future__ import annotations

import re
import unicodedata

from hiwater._os.sizes import format_size
from hiwater.capture import Frame

# Not printed as they are: controls (C), which move the cursor or turn text around, and line and paragraph separators.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = "\u200d\ufe0f"  # hold emoji together, and can do no harm
_PLAIN = re.compile(r"[\x20-\x7e]*\Z")


def size(count: int, error: int = 0) -> str:
    """Bytes in IEC units: 812.4 MiB; with a standard error above zero: 812.4 MiB ± 1.2 MiB."""
    return format_size(count, 1) + (f" ± {format_size(error, 1)}" if error else "")


def signed_size(count: int) -> str:
    """A change in bytes, with its sign: +812.4 MiB."""
    return ("+" if count > 0 else "−" if count < 0 else "±") + size(abs(count))


def signed_percent(percent: float | None) -> str:
    """A change in percent with its sign; "" where there is nothing to compare with."""
    if percent is None:
        return ""
    return ("+" if percent > 0 else "−" if percent < 0 else "±") + f"{abs(percent):,.1f} %"


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.2f} s"


def printable(text: str, longest: int | None = None) -> str:
    """Text in one line that moves no cursor and turns nothing around; the middle goes when it is longer than `longest`."""
    if not _PLAIN.match(text):
        text = "".join(_escaped(character) for character in text)
    if longest is not None and len(text) > longest:
        keep = max(1, longest - 1)
        text = text[: keep - keep // 2] + "…" + text[len(text) - keep // 2 :]
    return text


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE_CATEGORIES or character in _JOINERS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def frame_text(frame: Frame, longest: int | None = None) -> str:
    """`function (file:line)`, or what of it there is."""
    where = f"{frame.file}:{frame.line}" if frame.line and frame.file else frame.file
    return printable(f"{frame.function} ({where})" if where else frame.function, longest)


def short_frame_text(frame: Frame, longest: int | None = None) -> str:
    """`function (last part of the file:line)`; with the folder where the file's name says nothing."""
    parts = frame.file.split("/")
    kept = 2 if parts[-1] in ("__init__.py", "__main__.py") else 1
    return frame_text(Frame(frame.function, "/".join(parts[-kept:]), frame.line), longest)
