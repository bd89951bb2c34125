"""The names of the native functions of captures: from beside the capture, from the disk's cache, or from the files that
were recorded; of code that a compiler made in the recorded program, from the map that it wrote for `perf`."""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hiwater.analysis.symbols import files, names_file
from hiwater.analysis.symbols.demangle import demangled
from hiwater.analysis.symbols.elf import NotElf
from hiwater.analysis.symbols.files import Changed, Description, Fetch, description
from hiwater.analysis.symbols.names_file import ModuleNames
from hiwater.analysis.symbols.source_lines import Places
from hiwater.capture import attachments
from hiwater.capture.native_frames import GENERATED, Module, NativePlace
from hiwater.capture.reader import Contents
from hiwater.errors import CorruptCapture

_ALLOCATORS = re.compile(
    r"_?Py(?:Object|Mem)_(?:Debug)?(?:Raw)?(?:Malloc|Calloc|Realloc)|operator new(?:\[\])?\(.*\)"
    r"|<?alloc::alloc::.*|__r(?:ust|dl|g)_(?:alloc|alloc_zeroed|realloc)"
)
"""What allocates for its caller, which is the one to be shown."""
_IDENTITY = re.compile(r"[0-9a-f]{2,64}|headers:[0-9a-f]{16}")
_MOST_SECONDS = 60
"""For all modules together; what is not found by then has no name in this report."""


_LONGEST = 4096


class GeneratedCode:
    """What lies where: each line of a map has a start, a size, both in hexadecimal, and a name. Of two at one place the
    later is in use."""

    def __init__(self, text: str = "") -> None:
        functions = dict[int, tuple[int, str]]()
        for line in text.splitlines():
            start, size, name = [*line.split(" ", 2), "", ""][:3]
            try:
                functions[int(start, 16)] = int(size, 16), name[:_LONGEST]
            except ValueError:
                continue  # not a line of such a map
        self._starts = sorted(functions)
        self._functions = functions

    @classmethod
    def of(cls, contents: Contents) -> GeneratedCode:
        """That of a capture."""
        try:
            return cls(attachments.read(contents).get(attachments.PERF_MAP, b"").decode("utf-8", "replace"))
        except CorruptCapture:
            return cls()

    def at(self, address: int) -> str:
        """The function at an address."""
        index = bisect_right(self._starts, address) - 1
        size, name = self._functions[self._starts[index]] if index >= 0 else (0, "")
        return name if index >= 0 and address < self._starts[index] + size and name else GENERATED


class FunctionNames:
    """Finds names. `changed` has the files that are no longer those that were recorded, `missing` those that are gone,
    `given` all names that were asked for, by the identity of the module."""

    def __init__(
        self, folder: Path | None = None, moved: Mapping[str, ModuleNames] = {}, fetch: Fetch = files.fetch_nothing
    ) -> None:
        """`folder` is the cache's; by default it is in the user's own. `moved` are names that came with captures.
        `fetch` gets files of debug information that are not on this machine."""
        self._folder = folder or _cache_folder()
        self._moved, self._fetch = moved, fetch
        self._deadline = time.monotonic() + _MOST_SECONDS
        self.changed: set[str] = set()
        self.missing: set[str] = set()
        self._late: set[str] = set()
        self._known: dict[str, ModuleNames] = {}
        self.given: dict[str, ModuleNames] = {}

    def of(
        self, module: Module, addresses: Sequence[int], generated: Callable[[], GeneratedCode] = GeneratedCode
    ) -> list[Places]:
        """What these return addresses of a module, which count from its start, are in. `library+0x1234` is what is not
        known; there is nothing for an allocator, whose caller is to be shown. `generated` has the names of code in no
        file."""
        if module.path == GENERATED:
            names_of_generated = generated()
            return [(NativePlace(names_of_generated.at(module.start + address - 1)),) for address in addresses]
        names = self._names(module, addresses)
        given = self.given.setdefault(module.identity, ModuleNames(names.level))
        given.places |= ((at, names.places[at]) for at in map(hex, addresses) if at in names.places)
        return [self._shown(module, address, names.places.get(hex(address), ())) for address in addresses]

    def _names(self, module: Module, addresses: Sequence[int]) -> ModuleNames:
        names = self._known.setdefault(module.identity, ModuleNames())
        if names.level < 0:
            names.level, names.places = self._read(module.identity)
        missing = [address for address in addresses if hex(address) not in names.places]
        if not os.path.isabs(module.path) or not module.identity or not addresses:
            return names  # the kernel's own is in no file, and no file is known to be one without an identity
        if time.monotonic() > self._deadline:
            self._late |= {module.path} if missing else set()
            return names
        try:
            with description(module, self._folder, self._fetch) as found:
                if found.level > names.level:  # there is more to learn from than when these were found
                    missing = [*dict.fromkeys([*addresses, *(int(at, 16) for at in names.places)])]
                    names.level = found.level
                if missing:
                    names.places |= zip(map(hex, missing), self._find(found, missing), strict=True)
                    self._write(module.identity, names)
        except Changed:
            self.changed |= {module.path} if missing else set()
        except (OSError, NotElf, ValueError):
            self.missing |= {module.path} if missing else set()
        return names

    def _find(self, file: Description, addresses: Sequence[int]) -> list[Places]:
        # A call may be its function's last instruction: what it returns to is already the next one.
        calls = [max(0, address - 1) for address in addresses]
        functions = file.functions()
        by_tables = [functions.at(call) or "" for call in calls]
        by_lines = file.lines(calls, self._deadline - time.monotonic())
        chains = [
            chain if chain and chain[0].function else _first_named(chain, name)
            for chain, name in zip(by_lines or [()] * len(calls), by_tables, strict=True)
        ]
        mangled = [one.function for chain in chains for one in chain]
        shown = dict(zip(mangled, demangled(mangled), strict=True))
        return [tuple(NativePlace(shown[one.function], one.file, one.line) for one in chain) for chain in chains]

    def _shown(self, module: Module, address: int, chain: Places) -> Places:
        if not chain:
            return (NativePlace(f"{os.path.basename(module.path)}+{hex(address)}"),)
        while chain and _ALLOCATORS.fullmatch(chain[-1].function):
            chain = chain[:-1]
        return chain

    def _read(self, identity: str) -> tuple[int, dict[str, Places]]:
        """What is known already, the best of what comes from both places."""
        place = self._place(identity)
        cached = (names_file.read(place) if place is not None else {}).get(identity, ModuleNames())
        moved = self._moved.get(identity, ModuleNames())
        known = names_file.joined(cached, moved)
        return known.level, known.places

    def _write(self, identity: str, names: ModuleNames) -> None:
        """A cache that cannot be written is none."""
        place = self._place(identity)
        if place is not None and names_file.is_own_folder(place.parent):
            with suppress(OSError):
                names_file.write(place, {identity: names})

    def _place(self, identity: str) -> Path | None:
        return self._folder / f"{identity.replace(':', '-')}.json" if _IDENTITY.fullmatch(identity) else None

    def remarks(self) -> list[str]:
        """Sentences on what has no names, and why."""
        return [
            f"{_listed(files)} {words}: no names of {'its' if len(files) == 1 else 'their'} functions"
            for files, words in (
                (self.changed, "changed since the recording"), (self.missing, "cannot be read"),
                (self._late, f"came after {_MOST_SECONDS} s of searching"),
            ) if files
        ]  # fmt: skip


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hiwater" / "symbols"


def _first_named(chain: Places, name: str) -> Places:
    """A chain whose outermost function has no name there, with that of the table of symbols."""
    if not name:
        return tuple(one for one in chain if one.function)
    return (NativePlace(name, chain[0].file, chain[0].line), *chain[1:]) if chain else (NativePlace(name),)


def _listed(files: set[str]) -> str:
    shown = sorted(files)[:3]
    return ", ".join(map(repr, shown)) + (f" and {len(files) - 3:,} more" if len(files) > 3 else "")
