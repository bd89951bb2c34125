"""Writes the reports of a capture by Fil's names: a process of its own, see result_folder."""

from __future__ import annotations

import os
import resource
import webbrowser
from collections.abc import Sequence

from hiwater.capture import open as open_capture
from hiwater.cli import verbs
from hiwater.contrib.compat.fil.result_folder import say
from hiwater.errors import HiwaterError

_FILES = (
    ("{name}.svg", ("--format", "svg")),
    ("{name}-reversed.svg", ("--format", "svg", "--inverted")),
    ("{name}.prof", ("--format", "collapsed")),
)


def main(words: Sequence[str]) -> int:
    """Make the reports: CAPTURE FOLDER [--open]."""
    capture, folder, *options = words
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # a `ulimit -Sv` was meant for the program
    if _was_refused(capture) and not _written("out-of-memory", "oom", capture, folder):
        return 1
    if not _written("peak-memory", "peak", capture, folder):
        return 1
    page = os.path.join(folder, "index.html")
    if verbs.main(["report", capture, "--format", "html", "-o", page], is_private=True) != 0:
        return 1
    say(f"Wrote HTML report to {_shown(page)}")
    if "--open" in options:
        webbrowser.open("file://" + page)
    return 0


def _was_refused(capture: str) -> bool:
    """Whether the program was refused memory, and the capture has the live memory of that time."""
    try:
        open_capture(capture).snapshot("oom")
    except HiwaterError:
        return False
    return True


def _written(name: str, snapshot: str, capture: str, folder: str) -> bool:
    for pattern, format_words in _FILES:
        path = os.path.join(folder, pattern.format(name=name))
        if verbs.main(["report", capture, "--at", snapshot, *format_words, "-o", path], is_private=True) != 0:
            return False
        if path.endswith(".svg"):
            say(f"Wrote memory usage flamegraph to {_shown(path)}")
    return True


def _shown(path: str) -> str:
    """The path, relative if it is below the current folder."""
    shorter = os.path.relpath(path)
    return path if shorter.startswith("..") else shorter
