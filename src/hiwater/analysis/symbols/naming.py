"""The names of the native functions of captures: from the disk's cache, or from the files that were recorded."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hiwater._os import trust
from hiwater._os.replacing import replacing
from hiwater.analysis.symbols.demangle import demangled
from hiwater.analysis.symbols.elf import ElfFile, Functions, NotElf
from hiwater.capture.native_frames import Module

_ALLOCATORS = re.compile(r"_?Py(?:Object|Mem)_(?:Debug)?(?:Raw)?(?:Malloc|Calloc|Realloc)|operator new(?:\[\])?\(.*\)")
"""What allocates for its caller, which is the one to be shown."""
_IDENTITY = re.compile(r"[0-9a-f]{2,64}|headers:[0-9a-f]{16}")
_LARGEST_CACHE_BYTES = 64 << 20


class FunctionNames:
    """Finds names, and counts those that it found. `changed` has the files that are no longer those that were recorded,
    `missing` those that are gone."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is the cache's; by default it is in the user's own."""
        self._folder = folder or _cache_folder()
        self.changed: set[str] = set()
        self.missing: set[str] = set()
        self.named = self.unnamed = 0

    def of(self, module: Module, addresses: Sequence[int]) -> list[str | None]:
        """The functions that contain these return addresses of a module, which count from its start. `library+0x1234`
        for one that is not known; None for an allocator, whose caller is to be shown."""
        known = self._read(module.identity)
        missing = [address for address in addresses if hex(address) not in known]
        if missing and (functions := self._functions(module)) is not None:
            # A call may be its function's last instruction: what it returns to is already the next one.
            mangled = [functions.at(address - 1) or "" for address in missing]
            known |= zip(map(hex, missing), demangled(mangled), strict=True)
            self._write(module.identity, known)
        return [self._shown(module, address, known.get(hex(address), "")) for address in addresses]

    def _shown(self, module: Module, address: int, name: str) -> str | None:
        if not name:
            self.unnamed += 1
            return f"{os.path.basename(module.path)}+{hex(address)}"
        self.named += 1
        return None if _ALLOCATORS.fullmatch(name) else name

    def _functions(self, module: Module) -> Functions | None:
        if not os.path.isabs(module.path):
            return None  # the kernel's own, which is in no file
        try:
            with ElfFile(module.path) as file:
                if file.identity() == module.identity:
                    return file.functions()
                self.changed.add(module.path)
        except (OSError, NotElf, ValueError):
            self.missing.add(module.path)
        return None

    def _read(self, identity: str) -> dict[str, str]:
        with suppress(OSError, ValueError, AttributeError):
            place = self._place(identity)
            if place is not None:
                with open(trust.open_regular(place), "rb") as stream:
                    content = json.loads(stream.read(_LARGEST_CACHE_BYTES))
                return {key: value for key, value in content.items() if isinstance(value, str)}
        return {}

    def _write(self, identity: str, names: dict[str, str]) -> None:
        """A cache that cannot be written is none."""
        place = self._place(identity)
        if place is None:
            return
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not trust.is_own_folder(str(place.parent)):
                return
            with replacing(place, is_private=True) as stream:
                json.dump(names, stream)

    def _place(self, identity: str) -> Path | None:
        return self._folder / f"{identity.replace(':', '-')}.json" if _IDENTITY.fullmatch(identity) else None

    def remarks(self) -> list[str]:
        """Sentences on what has no names, and why."""
        found = [
            f"{_listed(files)} {words}: no names of {'its' if len(files) == 1 else 'their'} functions"
            for files, words in (
                (self.changed, "changed since the recording"), (self.missing, "cannot be read"),
            ) if files
        ]  # fmt: skip
        if self.unnamed:
            found.append(f"{self.named:,} of {self.named + self.unnamed:,} native places have the name of a function")
        return found


def _listed(files: set[str]) -> str:
    shown = sorted(files)[:3]
    return ", ".join(map(repr, shown)) + (f" and {len(files) - 3:,} more" if len(files) > 3 else "")


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hiwater" / "symbols"
