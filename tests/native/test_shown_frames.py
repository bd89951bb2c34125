"""What is shown instead of recorded frames, against a naive model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from hiwater.capture import native_frames
from hiwater.capture.format import CODE_NATIVE, CODE_PYTHON
from hiwater.capture.native_frames import Frames, Module, NativePlace
from hiwater.capture.reader import Contents

PYTHON_CODES, MODULES, ADDED = 5, 2, 1000  # strings from ADDED on are those of names
NODE = np.dtype([("parent", "<u4"), ("code", "<u4"), ("line", "<u4")])
CODE = np.dtype([("kind", "<u2"), ("function", "<u4"), ("file", "<u4"), ("first_line", "<u4")])
MODULE = np.dtype([("path", "<u8"), ("identity", "<u8"), ("code", "<u8"), ("bias", "<u8")])


def contents(choice: random.Random, count: int) -> Contents:
    """Nodes, each of which is below one of those before it; an account at each."""
    codes = np.zeros(1 + PYTHON_CODES + MODULES, CODE)
    codes["kind"][1 : 1 + PYTHON_CODES], codes["kind"][1 + PYTHON_CODES :] = CODE_PYTHON, CODE_NATIVE
    codes["file"] = codes["function"] = np.arange(len(codes))
    modules = np.zeros(1 + MODULES, MODULE)
    modules["code"][1:] = modules["path"][1:] = np.arange(1 + PYTHON_CODES, len(codes))
    nodes = np.zeros(count, NODE)
    for node in range(1, count):
        nodes[node] = max(0, node - choice.randint(1, 6)), choice.randrange(1, len(codes)), choice.randrange(8)
    accounts = np.zeros(count, np.dtype([("node", "<u4")]))
    accounts["node"] = np.arange(count)
    return Contents(Path(), {}, {"nodes": nodes, "codes": codes, "modules": modules, "accounts": accounts})


def naming(choice: random.Random, most: int) -> dict[tuple[str, int], list[NativePlace]]:
    """What is at each address of each module: none, one or several functions."""
    return {
        (str(module), address): [
            NativePlace(choice.choice("fgh"), choice.choice(["", "one.c"]), choice.randrange(2))
            for _ in range(choice.randint(0, most))
        ]
        for module in range(1 + PYTHON_CODES, 1 + PYTHON_CODES + MODULES)
        for address in range(8)
    }


def model(given: Contents, names: dict[tuple[str, int], list[NativePlace]], frames: Frames) -> list[tuple[object, ...]]:
    """For each node its frames from the root on: a function at a line, or the number of the node."""
    nodes, kinds = given.tables["nodes"], given.tables["codes"]["kind"]
    paths: list[tuple[object, ...]] = [(0,)]
    for node in range(1, len(nodes)):
        parent, code, line = nodes[node].tolist()
        own: tuple[object, ...] = (node,)
        if kinds[code] == CODE_NATIVE:
            own = tuple((one.function, one.file, one.line, code) for one in names[str(code), line])
        elif frames is Frames.native:
            own = ()
        paths.append(paths[parent] + own)
    return paths


@pytest.mark.parametrize("frames", [Frames.mixed, Frames.native])
@pytest.mark.parametrize("seed", range(40))
def test_frames_at_one_place_under_one_caller_are_one(frames: Frames, seed: int) -> None:
    choice = random.Random(seed)
    given, names, texts = contents(choice, choice.randint(1, 300)), naming(choice, choice.randint(0, 4)), list[str]()

    def name(module: Module, addresses: object) -> list[list[NativePlace]]:
        return [names[module.path, address] for address in addresses]  # type: ignore[attr-defined] # they are numbers

    def add(text: str) -> int:
        texts.append(text)
        return ADDED + len(texts) - 1

    def text_of(number: int) -> str:
        return texts[number - ADDED] if number >= ADDED else ""

    found = native_frames.shown(given, frames, str, add, name).tables
    expected = model(given, names, frames)
    nodes, codes = found["nodes"], found["codes"]
    assert (nodes["parent"][1:] < np.arange(1, len(nodes))).all()
    assert len(nodes) == len({path[:end] for path in expected for end in range(1, len(path) + 1)})
    for account, path in zip(found["accounts"]["node"].tolist(), expected, strict=True):
        shown, node = list[object](), account
        while node:
            code, line = codes[nodes[node]["code"]], int(nodes[node]["line"])
            if code["kind"] == CODE_NATIVE:
                shown.append((text_of(code["function"]), text_of(code["file"]), line, int(code["library"])))
            else:
                shown.append((int(nodes[node]["code"]), line))
            node = int(nodes[node]["parent"])
        assert shown[::-1] == [given_frame(given, one) for one in path[1:]]


def test_inlined_functions_that_would_fill_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_frames, "_MOST_ALWAYS", 0)
    given = contents(random.Random(1), 100)
    inlined = [NativePlace(f"inlined {number}") for number in range(32)]

    def shown(most: int) -> int:
        monkeypatch.setattr(native_frames, "_MOST_FOR_EACH", most)
        named = native_frames.shown(given, Frames.mixed, str, lambda _: ADDED, lambda _, at: [inlined for _ in at])
        return len(named.tables["nodes"])

    assert shown(33) > 500
    assert shown(4) <= 100


def given_frame(given: Contents, one: object) -> object:
    """The same of a frame of Python, which the model has by its node."""
    return one if isinstance(one, tuple) else tuple(given.tables["nodes"][one].tolist()[1:])
