"""Look for retired words in the documentation and in the code: `docs/glossary.md` has the words to use instead.

Of Markdown the prose is read, without code blocks and inline code. Of Python, C and C++ the comments, the strings and
the identifiers are read, of TypeScript the comments and strings. A line of code with the comment `retired word: REASON`
is exempt. A class name of `src` means one class: SHARED_CLASS_NAMES has the exceptions.

Usage: check_words.py [FILE …]; without files, README, CONTRIBUTING, docs/, src/hiwater, native/ and web/src.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
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
        r"\b(?:a|the|each|one|such|two|which|several|last|these|between|from|takes) looks?\b(?! like\b|-)",
        "residency snapshot; reading; check",
        "the look that saw most",
        "look at the report; the page looks empty",
    ),
    Retired(
        r"(?<!question )(?<!you )(?<!to )\bmarks?\b(?! (?:a|an|the|it|functions)\b)",
        "high-water mark; marker; tag",
        "the kernel's own mark",
        "functions marked @profile; mark the function",
    ),
    Retired(r"\bbook(?:s|ed|ing)?\b", "count; accounts", "booked under one lock", "a notebook of cells"),
    Retired(r"\bledgers?\b", "accounts", "the ledger of a stack", "a table of accounts"),
    Retired(
        r"\b(?:drawn|draws?|drawing) (?:blocks?|objects?|allocations?|at random|with probability)\b"
        r"|\b(?:blocks?|objects?|bytes) (?:that )?(?:is |are )?drawn\b|\b\d+ draws\b|\brepeats? a draw\b",
        "sample; sampled",
        "blocks below 64 KiB are drawn at random",
        "cells are drawn as bands; a drawing of memory over time",
    ),
    Retired(r"\bpicked\b(?! up)", "sampled; selected", "one byte is picked", "the child picked up the signal"),
    Retired(r"\bfold(?:s|ed|ing)?\b(?! (?:away|up)\b)", "read and reset", "peaks are folded", "a folder of captures"),
    Retired(
        r"\bcut (?:captures?|files?|recordings?)\b|\b(?:foreign|is|are|was),? cut\b(?! from\b)",
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


class Text(NamedTuple):
    """A comment, a string or a page, and the line of the file where it begins."""

    line: int
    text: str


# Parts of identifiers, as in `held_ledger` or `HeldLedger`.
RETIRED_PARTS = {
    "book": "count, account", "booked": "counted", "books": "accounts", "ledger": "account", "fold": "read_and_reset",
    "look": "snapshot, reading", "looks": "snapshots, readings", "mark": "marker, high_water_mark", "marks": "markers",
    "beside": "baseline", "plant": "build",
    "folded": "read_and_reset", "forest": "call_tree", "stranger": "foreign", "wishes": "options", "talk": "messages",
}  # fmt: skip
NOT_RETIRED = re.compile(r"high_?water_?mark", re.IGNORECASE)
EXEMPT = re.compile(r"(?:#|//|/\*).*\bretired word: \w")


def prose(text: str) -> str:
    """The text without code and the targets of links; what stays is on the line where it was."""
    text = re.sub(r"^```.*?^```$", blank, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(?: {4}|::: ).*$", blank, text, flags=re.MULTILINE)
    return re.sub(r"(?<=\])\([^)]*\)", blank, text)


def blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def retired_in(texts: list[Text]) -> Iterator[tuple[int, str, str]]:
    """Line, words found and words to use; a phrase may go on in the next line."""
    for start, text in texts:
        kept = re.sub(r"`[^`]*`", blank, text)
        kept = re.sub(r"high-water\s+marks?", blank, kept)  # the one mark that there is, also across lines
        flat = kept.replace("\n", " ")
        for word in TABLE:
            for found in re.finditer(word.pattern, flat, re.IGNORECASE):
                yield start + kept.count("\n", 0, found.start()), found[0], word.instead


def retired_names(names: Iterator[Text]) -> Iterator[tuple[int, str, str]]:
    """Line, name and words to use of identifiers that contain a retired word."""
    for line, name in names:
        for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", NOT_RETIRED.sub("", name)):
            if part.lower() in RETIRED_PARTS:
                yield line, name, RETIRED_PARTS[part.lower()]


def joined(comments: list[Text]) -> list[Text]:
    """Comments on consecutive lines are one text."""
    texts: list[Text] = []
    for comment in comments:
        if texts and texts[-1].line + texts[-1].text.count("\n") + 1 == comment.line:
            texts[-1] = Text(texts[-1].line, f"{texts[-1].text}\n{comment.text}")
        else:
            texts.append(comment)
    return texts


def of_python(source: str) -> Iterator[tuple[int, str, str]]:
    """The retired words in the comments, strings and identifiers of a Python file."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    comments = [Text(token.start[0], token.string.lstrip("#:")) for token in tokens if token.type == tokenize.COMMENT]
    strings = [
        Text(node.lineno, node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    yield from retired_in(joined(comments) + strings)
    yield from retired_names(Text(token.start[0], token.string) for token in tokens if token.type == tokenize.NAME)


_STRING = r'"(?:[^"\\\n]|\\.)*"'
CPP = re.compile(
    rf"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>{_STRING})|(?P<name>[A-Za-z_]\w*)|'(?:[^'\\\n]|\\.)'", re.DOTALL
)
TYPESCRIPT = re.compile(
    rf"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>{_STRING}|'(?:[^'\\\n]|\\.)*'|`[^`]*`|(?<=>)[^<>{{}};=]+(?=<))|[A-Za-z_]\w*",
    re.DOTALL,
)


def of_tokens(pattern: re.Pattern[str], source: str) -> Iterator[tuple[int, str, str]]:
    """The retired words in the comments, strings and identifiers of a file of C, C++ or TypeScript."""
    found = [(source.count("\n", 0, token.start()) + 1, token) for token in pattern.finditer(source)]
    comments = [Text(line, token[0].strip("/*")) for line, token in found if token.lastgroup == "comment"]
    strings = [Text(line, token[0].strip("`")) for line, token in found if token.lastgroup == "string"]
    yield from retired_in(joined(comments) + strings)
    yield from retired_names(Text(line, token[0]) for line, token in found if token.lastgroup == "name")


def retired_of(path: Path) -> list[tuple[int, str, str]]:
    """The retired words of a file, but for exempt lines."""
    source = path.read_text("utf-8")
    if path.suffix == ".md":
        return sorted(retired_in([Text(1, prose(source))]))
    if path.suffix == ".py":
        found = of_python(source)
    else:
        found = of_tokens(TYPESCRIPT if path.suffix in (".ts", ".tsx") else CPP, source)
    lines = source.split("\n")
    return sorted(item for item in found if not EXEMPT.search(lines[item[0] - 1]))


# Class names that several modules may define, and why.
SHARED_CLASS_NAMES = {
    "LineProfiler": "the name of line_profiler and memory_profiler, and that of pytorch_memlab for a device",
    "MemoryCallback": "one for each trainer: a program that changes its trainer changes only the import",
    "Middleware": (
        "hiwater.asgi.Middleware and hiwater.wsgi.Middleware: a program that changes its server changes only the import"
    ),
    "Stack": "the name that filters of pytest-memray's limit_leaks get; a stack of a capture is public, too",
}


def shared_class_names(paths: Iterable[Path]) -> list[tuple[str, list[str]]]:
    """The class names that are defined in several of the files and need not be, each with its places."""
    found: dict[str, list[str]] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name not in SHARED_CLASS_NAMES:
                found.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return [(name, places) for name, places in sorted(found.items()) if len(places) > 1]


def files() -> Iterator[Path]:
    """All files that are checked."""
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    for folder, pattern in (("docs", "*.md"), ("src/hiwater", "**/*.py"), ("native", "**/*.*"), ("web/src", "*.ts*")):
        yield from sorted(path for path in (ROOT / folder).glob(pattern) if path.suffix != ".txt")


def main(names: list[str]) -> int:
    check_table()
    count = 0
    for path in [Path(name) for name in names] or files():
        for line, words, instead in retired_of(path):
            print(f"{path}:{line}: {words!r} is retired: {instead}")
            count += 1
    if count:
        print(f"{count} retired words; docs/glossary.md has the words to use")
    shared = shared_class_names(sorted((ROOT / "src").glob("**/*.py")))
    for name, places in shared:
        print(f"the class name {name} is used more than once: {', '.join(places)}")
    return 1 if count or shared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
