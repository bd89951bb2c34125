"""Look for retired words in the documentation: `docs/glossary.md` has the words to use instead.

Code blocks and inline code are not prose and are not read. Usage: check_words.py [FILE …]; without files, README, CONTRIBUTING and docs/.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Retired(NamedTuple):
    """A retired word, with a sentence that uses it and one that only looks alike."""

    pattern: str
    instead: str
    used: str
    not_used: str


TABLE = [
    Retired(
        r"\b(?:a|the|each|one|such|two|which|several|last|these|between|from|takes) looks?\b",
        "residency snapshot; reading; check",
        "the look that saw most",
        "look at the report; the page looks empty",
    ),
    Retired(
        r"(?<!question )(?<!you )(?<!to )\bmarks?\b(?! (?:a|an|the|it)\b)",
        "high-water mark; marker; tag",
        "the kernel's own mark",
        "functions marked @profile; mark the function",
    ),
    Retired(r"\bbook(?:s|ed|ing)?\b", "count; accounts", "booked under one lock", "a notebook of cells"),
    Retired(r"\bledgers?\b", "accounts", "the ledger of a stack", "a table of accounts"),
    Retired(
        r"\b(?:drawn|draws?|drawing) (?:blocks?|objects?|allocations?|at random|with probability)\b"
        r"|\b(?:blocks?|objects?|bytes) (?:that )?(?:is |are )?drawn\b|\b\d+ draws\b|\brepeats a draw\b",
        "sample; sampled",
        "blocks below 64 KiB are drawn at random",
        "cells are drawn as bands; a drawing of memory over time",
    ),
    Retired(r"\bpicked\b(?! up)", "sampled; selected", "one byte is picked", "the child picked up the signal"),
    Retired(r"\bfold(?:s|ed|ing)?\b(?! (?:away|up)\b)", "read and reset", "peaks are folded", "a folder of captures"),
    Retired(
        r"\bcut (?:captures?|files?|recordings?)\b|\b(?:foreign|is|are|was),? cut\b",
        "truncated",
        "a cut capture",
        "cut the time in half",
    ),
    Retired(r"\bstrangers?\b", "foreign file", "the file is a stranger", "a strange name"),
    Retired(r"\bwishes\b", "options", "the user's wishes", "who wish to share"),
    Retired(r"\btalk\b", "messages", "talk goes to stderr", "they talked"),
    Retired(
        r"\bleans?\b|\bleaning\b|\bknocks?\b",
        "biased lock; use",
        "the lock leans to that thread",
        "clean memory",
    ),
    Retired(r"\bthe (?:short|long) way\b", "fast path; slow path", "the short way of an event", "a short way off"),
    Retired(
        r"\b(?:brings?|brought|bringing)\b(?: \w+){0,3} together\b",
        "merge",
        "brings the tables together",
        "reports show them together",
    ),
    Retired(
        r"\b(?:freed|dropped) at once\b",
        "temporary allocation; freed immediately",
        "blocks freed at once",
        "two recorders that start at once",
    ),
    Retired(r"\bin RAM now\b", "resident", "pages in RAM now", "pages in RAM"),
    Retired(
        r"\bwho(?:ever)? (?:asked|asks|held|holds|still holds|gives it back)\b",
        "call path; holder; what holds",
        "who held memory at the peak",
        "the user who owns the file",
    ),
    Retired(r"\broot below\b|\bno imports\b", "flip; hide", "with the root below", "below the root"),
    Retired(r"(?<!random )\bforests?\b", "call tree", "the forest of calls", "a random forest"),
    Retired(
        r"\bpoints of (?:a|the|its) timeline\b|\btimeline points\b",
        "samples",
        "the points of its timeline",
        "a point in time",
    ),
    Retired(
        r"\b(?:reads?|takes?|counts?|starts?|started|begins?|begin|bound) (?:\w+ ){0,2}anew\b",
        "reset; again",
        "the mark is started anew",
        "new memory",
    ),
    Retired(r"\bstands? beside\b|\bheld beside\b", "next to; with", "what A held beside it", "beside the capture"),
]


def check_table() -> None:
    """Each pattern finds what it is for, and leaves alone what only looks alike."""
    for word in TABLE:
        assert re.search(word.pattern, word.used, re.IGNORECASE), f"{word.pattern!r} misses {word.used!r}"
        assert not re.search(word.pattern, word.not_used, re.IGNORECASE), f"{word.pattern!r} finds {word.not_used!r}"


def prose(text: str) -> str:
    """The text without code and the targets of links; what stays is on the line where it was."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    text = re.sub(r"^```.*?^```$", blank, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ {4}.*$", blank, text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", blank, text)
    text = re.sub(r"(?<=\])\([^)]*\)", blank, text)
    return re.sub(r"high-water\s+marks?", blank, text)  # the one mark that there is, also across lines


def retired_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, words found and words to use; a phrase may go on in the next line."""
    text = prose(text)
    flat = text.replace("\n", " ")
    for word in TABLE:
        for found in re.finditer(word.pattern, flat, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, found[0], word.instead


def main(names: list[str]) -> int:
    check_table()
    pages = [Path(name) for name in names] or [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted(ROOT.glob("docs/*.md")),
    ]
    count = 0
    for page in pages:
        for line, words, instead in sorted(retired_in(page.read_text("utf-8"))):
            print(f"{page}:{line}: {words!r} is retired: {instead}")
            count += 1
    if count:
        print(f"{count} retired words; docs/glossary.md has the words to use")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
