"""The names of native functions in files: in the disk's cache, one for each module, and beside captures that
`hiwater symbolize` has made ready to be moved, one for all modules.

A file beside a capture comes from wherever the capture does. It can give any name, and nothing else: sizes are bounded,
and a file with other content than this counts as none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hiwater._os import trust
from hiwater._os.replacing import replacing
from hiwater.capture.native_frames import NativePlace

_SUFFIX = ".symbols"
_FORMAT = "hiwater.symbols/1"
_ADDRESS = re.compile(r"0x[0-9a-f]{1,12}")
_LARGEST_BYTES, _LONGEST, _MOST_INLINED = 64 << 20, 4096, 32


@dataclass
class ModuleNames:
    """What is known of one module: by return address, counted from its start. `level` says how much there was to learn
    from: `files.Description`."""

    level: int = -1
    places: dict[str, tuple[NativePlace, ...]] = field(default_factory=dict)


def read(path: Path) -> dict[str, ModuleNames]:
    """The names in a file, by the identity of their module; none if it cannot be read."""
    with suppress(OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        with open(trust.open_regular(path), "rb") as stream:
            content = json.loads(stream.read(_LARGEST_BYTES))
        if content["format"] == _FORMAT:
            return {str(identity): _names(module) for identity, module in content["modules"].items()}
    return {}


def _names(module: Mapping[str, Any]) -> ModuleNames:
    if not all(map(_ADDRESS.fullmatch, module["places"])):
        raise ValueError("not an address")
    places = {
        address: tuple(
            NativePlace(str(function)[:_LONGEST], str(file)[:_LONGEST], int(line) & 0xFFFFFFFF)
            for function, file, line in chain[:_MOST_INLINED]
        )
        for address, chain in module["places"].items()
    }
    return ModuleNames(int(module["level"]), places)


def is_own_folder(folder: Path) -> bool:
    """Whether this user alone may write to a folder of hiwater's, which is made if it is not there."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return trust.is_own_folder(str(folder))


def write(path: Path, modules: Mapping[str, ModuleNames]) -> None:
    """Replace the file. Raises OSError."""
    content = {
        "format": _FORMAT,
        "modules": {
            identity: {
                "level": names.level,
                "places": {
                    address: [(one.function, one.file, one.line) for one in chain]
                    for address, chain in names.places.items()
                },
            }
            for identity, names in modules.items()
        },
    }
    with replacing(path, is_private=True) as stream:
        json.dump(content, stream)


def with_captures(captures: Iterable[Path]) -> dict[str, ModuleNames]:
    """The names that lie beside captures; those of a run, and of captures in one file, beside the first or the file."""
    found: dict[str, ModuleNames] = {}
    for path in dict.fromkeys(place for capture in captures for place in _places(capture)):
        for identity, names in read(path).items():
            found[identity] = joined(found.get(identity, ModuleNames()), names)
    return found


def joined(one: ModuleNames, other: ModuleNames) -> ModuleNames:
    """What two sources know of a module: those with less to learn from add nothing."""
    worse, better = sorted((one, other), key=lambda names: names.level)
    return ModuleNames(better.level, (worse.places if worse.level == better.level else {}) | better.places)


def _places(capture: Path) -> Iterator[Path]:
    yield symbols_path(capture)
    if capture.suffix == ".d":
        yield symbols_path(capture.with_suffix(""))
    folder = capture.parent
    if folder.suffix == ".d":
        yield symbols_path(folder.with_suffix(""))
    elif folder.is_file():
        yield symbols_path(folder)


def symbols_path(capture: Path) -> Path:
    """Where the names of a capture are that was made ready to be moved."""
    return capture.with_name(capture.name + _SUFFIX)
