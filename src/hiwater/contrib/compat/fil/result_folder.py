"""The folders and files that Fil writes: `fil-result/<time>/` with index.html, peak-memory.svg,
peak-memory-reversed.svg, peak-memory.prof.

A separate process makes the reports: they need NumPy and more, which must not be imported into the program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from hiwater.errors import OutputFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT = "fil-result"
_CAPTURE = "capture.hiw"
_SOURCE = (
    "import sys; sys.path[:] = sys.argv.pop(1).split(chr(10)); "
    "from hiwater.contrib.compat.fil.reports import main; sys.exit(main(sys.argv[1:]))"
)


def say(text: str) -> None:
    """Write a line on stderr with Fil's prefix."""
    stream = sys.__stderr__
    if stream is not None and not stream.closed:
        stream.write(f"=fil-profile= {text}\n")
        stream.flush()


def new(root: str) -> str:
    """Make a folder below `root`, named after the time, and return its absolute path. Raises OutputFailed."""
    now = time.time()
    name = time.strftime("%Y-%m-%dT%H-%M-%S", time.localtime(now)) + f"_{int(now * 1000) % 1000:03}"
    for number in range(1000):
        folder = os.path.abspath(os.path.join(root, f"{name}_{number}" if number else name))
        if not os.path.exists(folder):
            return made(folder)
    raise OutputFailed(f"{root!r} has a thousand folders of this moment", "choose another one with -o")


def made(folder: str) -> str:
    """Make this folder if it does not exist, and return its absolute path. Raises OutputFailed."""
    folder = os.path.abspath(folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise OutputFailed(f"{folder!r} cannot be made ({error.strerror})", "choose another one with -o") from error
    return folder


def capture_in(folder: str) -> str:
    """The path of the capture for the reports of a folder."""
    return os.path.join(folder, _CAPTURE)


def remove_if_empty(folder: str) -> None:
    """Remove the folder of a program that never ran, and its parent."""
    for path in (folder, os.path.dirname(folder)):
        try:
            os.rmdir(path)
        except OSError:
            return


def write_reports(capture: str, folder: str, *, opens_browser: bool = False) -> None:
    """Write all reports of a capture into a folder. Their names, or errors, are printed on stderr."""
    words: Sequence[str] = [capture, folder, *(["--open"] if opens_browser else [])]
    try:
        done = subprocess.run([sys.executable, "-I", "-c", _SOURCE, "\n".join(sys.path), *words], check=False)
    except OSError as error:
        say(f"the reports could not be made ({error.strerror}); read {capture} with `hiwater report`")
        return
    if done.returncode != 0:
        say(f"the reports are not complete; read {capture} with `hiwater report`")
