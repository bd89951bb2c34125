"""A text job in plain Python over real text: the sources of Python's own library.

It reads every source file of the standard library, builds an index from words to the places they stand in, and answers
which words are in the most files.

What to look for. There is a fault in it, one line long: `normalise` has an unbounded cache, so that every line ever
read stays in memory together with its list of words, for a job that meets most lines once.

    hiwater run -o textjob.hiw examples/textjob.py
    hiwater report textjob.hiw

points at the lines in `normalise`. Then run it with `--fixed`, which leaves the cache out, and compare the peaks.
"""

from __future__ import annotations

import argparse
import functools
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

WORD = re.compile(r"[A-Za-z_]\w{2,}")
Normalise = Callable[[str], tuple[str, ...]]


def library_sources() -> list[Path]:
    """Return the source files of the standard library, without its tests and what is installed beside it."""
    library = Path(sysconfig.get_path("stdlib"))
    aside = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    return sorted(path for path in library.rglob("*.py") if aside.isdisjoint(path.relative_to(library).parts))


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file with their numbers."""
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from enumerate(file, start=1)


def words_of(line: str) -> tuple[str, ...]:
    """Return the words of a line in lower case."""
    return tuple(word.lower() for word in WORD.findall(line))


@functools.cache  # the fault: no bound, and hardly ever the same line twice
def normalise(line: str) -> tuple[str, ...]:
    """Return the words of a line in lower case, and remember them for ever."""
    words = WORD.findall(line)
    return tuple(word.lower() for word in words)


def build_index(paths: list[Path], normalise: Normalise) -> dict[str, dict[str, int]]:
    """Return for each word the files it is in, with how often."""
    index: dict[str, dict[str, int]] = {}
    for path in paths:
        for _, line in numbered_lines(path):
            for word in normalise(line):
                places = index.setdefault(word, {})
                places[path.name] = places.get(path.name, 0) + 1
    return index


def main() -> None:
    """Build the index and print its answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fixed", action="store_true", help="without the fault")
    arguments = parser.parse_args()

    paths = library_sources()
    index = build_index(paths, words_of if arguments.fixed else normalise)
    print(f"{len(index):,} words in {len(paths):,} files")
    for word, places in sorted(index.items(), key=lambda item: (-len(item[1]), item[0]))[:10]:
        print(f"{len(places):6,} files  {sum(places.values()):8,} times  {word}")


if __name__ == "__main__":
    main()
