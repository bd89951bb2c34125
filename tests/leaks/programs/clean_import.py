"""Modules that are imported when a call first needs them."""

import importlib

from noise import draw, work

_NAMES = [
    "argparse",
    "csv",
    "decimal",
    "fractions",
    "html.parser",
    "json",
    "pprint",
    "statistics",
    "tarfile",
    "wave",
    "zipfile",
]
draw.shuffle(_NAMES)
_calls = 0


def call() -> None:
    global _calls
    work()
    _calls += 1
    importlib.import_module(_NAMES[_calls // 3 % len(_NAMES)])
