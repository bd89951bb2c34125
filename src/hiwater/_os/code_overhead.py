"""How much memory hiwater's own code takes in a process that hiwater starts: its modules, and its library."""

from __future__ import annotations

_before: tuple[int, int] | None = None


def note_start() -> None:
    """Note that hiwater's code begins to load now. Only for a process in which it loads before the program, and the
    program would not load it."""
    global _before  # noqa: PLW0603 - there is one start of a process
    _before = _resident()


def loaded_bytes() -> tuple[int, int]:
    """What has become resident since `note_start()`: pages of files, and others. 0 if it was not called, or /proc is
    missing."""
    if _before is None:
        return 0, 0
    file, other = _resident()
    return max(0, file - _before[0]), max(0, other - _before[1])


def anonymous_bytes() -> int:
    """What is resident now and no file's; 0 where /proc is missing."""
    return _resident()[1]


def _resident() -> tuple[int, int]:
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as status:
            text = status.read()
    except OSError:
        return 0, 0
    return _field(text, "RssFile:"), _field(text, "RssAnon:")


def _field(text: str, name: str) -> int:
    _, _, after = text.partition(name)
    number = after.split(None, 1)[:1]
    return int(number[0]) * 1024 if number else 0
