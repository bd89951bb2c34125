"""Formats sizes, times and names for people. Names come from the recorded program and are not trusted."""

from __future__ import annotations

import re
import unicodedata

from hiwater._os.sizes import format_size
from hiwater.capture import Frame

# Not printed as they are: controls (C), which move the cursor or turn text around, and line and paragraph separators.
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = "\u200d\ufe0f"  # hold emoji together, and can do no harm
KIND_WORDS = {
    "python": "Python objects and buffers",
    "native": "native heap (malloc and its family)",
    "mapping": "anonymous mappings",
    "device": "device memory",
    "shared": "shared memory",
}
_PLAIN = re.compile(r"[\x20-\x7e]*\Z")


def size(count: int, error: int = 0) -> str:
    """Bytes in IEC units: 812.4 MiB; with a standard error above zero: 812.4 MiB ± 1.2 MiB."""
    return format_size(count, 1) + (f" ± {format_size(error, 1)}" if error else "")


def signed_size(count: int) -> str:
    """A change in bytes, with its sign: +812.4 MiB."""
    return ("+" if count > 0 else "−" if count < 0 else "±") + size(abs(count))


def signed_percent(percent: float | None) -> str:
    """A change in percent with its sign; "" if there is nothing to compare with."""
    if percent is None:
        return ""
    return ("+" if percent > 0 else "−" if percent < 0 else "±") + f"{abs(percent):,.1f} %"


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.2f} s"


def printable(text: str, longest: int | None = None) -> str:
    """Text in one line that cannot move the cursor or change the direction of text. If it is longer than `longest`,
    its middle is left out."""
    if longest is not None and len(text) > 2 * longest:  # what is left out below need not be escaped
        text = text[:longest] + text[-longest:]
    if not _PLAIN.match(text):
        text = text.translate(_ESCAPES)
    if longest is not None and len(text) > longest:
        keep = max(1, longest - 1)
        text = text[: keep - keep // 2] + "…" + text[len(text) - keep // 2 :]
    return text


class _Escapes(dict[int, str]):
    """What stands for each character, found out when it first occurs."""

    def __missing__(self, code: int) -> str:
        self[code] = _escaped(chr(code))
        return self[code]


_ESCAPES = _Escapes()


def _escaped(character: str) -> str:
    if unicodedata.category(character) not in _UNSAFE_CATEGORIES or character in _JOINERS:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def frame_text(frame: Frame, longest: int | None = None) -> str:
    """`function (file:line)`, or the known part of it."""
    where = f"{frame.file}:{frame.line}" if frame.line and frame.file else frame.file
    return printable(f"{frame.function} ({where})" if where else frame.function, longest)


def short_frame_text(frame: Frame, longest: int | None = None) -> str:
    """`function (last part of the file:line)`; with the folder if the file's name is a general one."""
    parts = frame.file.split("/")
    kept = 2 if parts[-1] in ("__init__.py", "__main__.py") else 1
    return frame_text(Frame(frame.function, "/".join(parts[-kept:]), frame.line), longest)


def place_and_function(frame: Frame, folder: str) -> str:
    """`file:line (function)`, with the file as `place_text` has it; the function if there is no file."""
    where = place_text(frame, folder)
    return f"{where} ({printable(frame.function)})" if frame.file else where


def place_text(frame: Frame, folder: str, longest: int | None = None) -> str:
    """`file:line`, with the file relative to `folder` if it is inside; the function if there is no file."""
    file = frame.file.removeprefix(folder.rstrip("/") + "/") if folder else frame.file
    return printable(f"{file}:{frame.line}" if frame.line and file else file or frame.function, longest)
