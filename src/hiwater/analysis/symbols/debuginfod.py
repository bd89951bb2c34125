"""Debug information from the servers that DEBUGINFOD_URLS names: only where a person asks for it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from hiwater._os.replacing import replacing
from hiwater.analysis.symbols.names_file import is_own_folder
from hiwater.errors import BadRequest

_PATIENCE_SECONDS, _MOST_SECONDS, _MOST_BYTES = 5, 60, 1 << 30
_VARIABLE = "DEBUGINFOD_URLS"


class Servers:
    """The servers, asked one after the other. One that does not answer is not asked again."""

    def __init__(self) -> None:
        """Raises BadRequest if there are none."""
        self._urls: Sequence[str] = [
            url for url in os.environ.get(_VARIABLE, "").split() if url.startswith(("https://", "http://"))
        ]
        if not self._urls:
            raise BadRequest("there is no server to ask", f"name one, as in {_VARIABLE}=https://debuginfod.debian.net")
        self.unreachable: list[str] = []

    def fetch(self, build_id: str, into: Path) -> None:
        """Get the debug information for a build-id, if one of the servers has it."""
        if not is_own_folder(into.parent):
            return
        for url in self._urls:
            if url in self.unreachable:
                continue
            try:
                if _download(f"{url.rstrip('/')}/buildid/{build_id}/debuginfo", into):
                    return
            except FileNotFoundError:
                continue  # the server does not have it
            except (OSError, HTTPException, ValueError):
                self.unreachable.append(url)


def _download(url: str, into: Path) -> bool:
    """Raises FileNotFoundError where the server says so, and OSError."""
    from urllib.error import HTTPError

    until = time.monotonic() + _MOST_SECONDS
    try:
        answer = urlopen(Request(url, headers={"User-Agent": "hiwater"}), timeout=_PATIENCE_SECONDS)  # noqa: S310 - http alone
    except HTTPError as error:
        with error:
            raise FileNotFoundError(url) from None
    with answer, suppress(EOFError), replacing(into, is_private=True) as text:
        stream, size = text.buffer, 0
        while content := answer.read(1 << 20):
            size += len(content)
            if size > _MOST_BYTES or time.monotonic() > until:
                raise EOFError
            stream.write(content)
    return into.exists()
