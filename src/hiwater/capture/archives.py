"""Zip archives that came from elsewhere: what they unpack to is bounded before it is unpacked."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from itertools import pairwise
from typing import IO

from hiwater._os import trust
from hiwater.capture import bounds

DAMAGE = (
    zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError, struct.error,
    OverflowError, OSError,
)  # fmt: skip
"""What zipfile and zlib raise for files that were damaged, beside OSError for places that are none."""

# At the end of the file: of the directory, its place, and of a comment, which hiwater writes none of.
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")  # before it, in an archive of more than 4 GiB or 65,535 members
_LARGE_END = struct.Struct("<4sQ2H2L4Q")  # before that
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the only ones that hiwater writes, and whose memory is bounded


def opened(file: str | os.PathLike[str] | IO[bytes]) -> zipfile.ZipFile:
    """The archive in a file, whose directory is in bounds and names no byte twice. Raises one of DAMAGE, or
    FileNotFoundError."""
    if isinstance(file, str | os.PathLike):
        with open(trust.open_regular(file, follows=True), "rb") as stream:
            _check_directory(stream)
    else:
        _check_directory(file)
    archive = zipfile.ZipFile(file)
    places = sorted((info.header_offset, info.compress_size) for info in archive.infolist())
    if any(begin + length > following for (begin, length), (following, _) in pairwise(places)):
        archive.close()
        raise zipfile.BadZipFile("its members overlap")
    return archive


def _check_directory(stream: IO[bytes]) -> None:
    """Whether the archive's directory may be read, which zipfile reads at once and makes objects of. Raises
    zipfile.BadZipFile, OSError or ValueError."""
    stream.seek(0, os.SEEK_END)
    length = stream.tell()
    stream.seek(max(0, length - _END.size - _LOCATOR.size - _LARGE_END.size))
    tail = stream.read().rjust(_END.size + _LOCATOR.size + _LARGE_END.size, b"\0")
    end = _END.unpack(tail[-_END.size :])
    if end[0] != b"PK\5\6" or end[-1]:
        raise zipfile.BadZipFile("it does not end with its directory")
    sizes = [end[5]]
    if tail[-_END.size - _LOCATOR.size :].startswith(b"PK\6\7"):
        sizes.append(_LARGE_END.unpack(tail[: _LARGE_END.size])[8])
    if max(sizes) > bounds.LARGEST_DIRECTORY_BYTES:
        raise zipfile.BadZipFile("its directory is larger than can be")


def check_member(archive: zipfile.ZipFile, name: str, size: int) -> None:
    """Whether `size` bytes of a member may be unpacked. Raises KeyError where there is none, zipfile.BadZipFile if
    they are more than it can hold."""
    info = archive.getinfo(name)
    if info.compress_type not in _METHODS:
        raise zipfile.BadZipFile("it is compressed in a way that hiwater does not use")
    if size > bounds.most_unpacked(info.compress_size):
        raise zipfile.BadZipFile(f"{size} bytes cannot be packed into {info.compress_size}")
