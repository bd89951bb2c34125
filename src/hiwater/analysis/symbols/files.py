"""Which files describe a module's code: its own, and one to which its debug information was moved.

Only one that is surely of this module is used: by its build-id, or by the checksum in the module's debug link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hiwater.analysis.symbols import source_lines
from hiwater.analysis.symbols.elf import ElfFile, Functions, NotElf
from hiwater.capture.native_frames import Module

DEBUG_ROOT = "/usr/lib/debug"
_BUILD_ID = re.compile(r"[0-9a-f]{4,64}")


Fetch = Callable[[str, Path], None]
"""Gets the debug information for a build-id from elsewhere into a file, if it can."""


def fetch_nothing(_build_id: str, _into: Path) -> None:
    """Where nobody asked for more than is on this machine."""


class Changed(ValueError):
    """There is another file at the path now."""


@dataclass(frozen=True, slots=True)
class Description:
    """What describes a module. `level` is higher the more there is: names, names of a separate file, source lines."""

    level: int
    _tables: ElfFile
    _lines: ElfFile | None

    def functions(self) -> Functions:
        return self._tables.functions()

    def lines(self, addresses: list[int], seconds: float) -> list[source_lines.Places] | None:
        """None where nothing tells them."""
        return None if self._lines is None else source_lines.find(self._lines.descriptor, addresses, seconds)


@contextmanager
def description(module: Module, folder: Path, fetch: Fetch) -> Iterator[Description]:
    """What describes this module here. `fetch` puts a file that is missing into `folder`. Raises OSError, NotElf, or
    Changed."""
    with ExitStack() as opened:
        own = opened.enter_context(ElfFile(module.path))
        if own.identity() != module.identity:
            raise Changed(module.path)
        separate = None if own.has_lines() else _separate(module, own, folder, fetch)
        if separate is not None:
            opened.enter_context(separate)
        lines = separate or own
        has_lines = lines.has_lines() and source_lines.finder() is not None
        yield Description(2 if has_lines else int(separate is not None), lines, lines if has_lines else None)


def _separate(module: Module, own: ElfFile, folder: Path, fetch: Fetch) -> ElfFile | None:
    """The file with the module's debug information, opened."""
    link = own.debug_link()
    for path in _places(module, link[0] if link else "", folder, fetch):
        with suppress(OSError, NotElf):
            found = ElfFile(path)
            try:
                if _BUILD_ID.fullmatch(module.identity):
                    is_it = found.identity() == module.identity
                else:
                    is_it = link is not None and found.checksum() == link[1]
            except (OSError, NotElf):
                is_it = False
            if is_it:
                return found
            os.close(found.descriptor)
    return None


def _places(module: Module, link: str, folder: Path, fetch: Fetch) -> Iterator[str]:
    if _BUILD_ID.fullmatch(module.identity):
        yield f"{DEBUG_ROOT}/.build-id/{module.identity[:2]}/{module.identity[2:]}.debug"
    if link and "/" not in link and link not in (".", ".."):
        own_folder = os.path.dirname(os.path.realpath(module.path))
        for place in (own_folder, f"{own_folder}/.debug", f"{DEBUG_ROOT}{own_folder}"):
            yield f"{place}/{link}"
    if _BUILD_ID.fullmatch(module.identity):
        fetched = folder / f"{module.identity}.debug"
        if not fetched.exists():
            fetch(module.identity, fetched)
        yield str(fetched)
