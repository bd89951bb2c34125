"""Whether this interpreter runs a command of hiwater, which is no part of the program."""

from __future__ import annotations

import os
import sys


def is_own_command() -> bool:
    words = sys.orig_argv[1:3]
    return bool(words) and (os.path.basename(words[0]) == "hiwater" or words == ["-m", "hiwater"])
