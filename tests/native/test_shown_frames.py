"""What is shown instead of recorded frames, against a naive model."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from hiwater.capture import native_frames
from hiwater.capture.format import CODE_LABEL, CODE_NATIVE, CODE_NATIVE_STACK, CODE_PYTHON
from hiwater.capture.native_frames import Frames, Module, NativePlace
from hiwater.capture.reader import Contents

LABEL, STACK, PYTHON_CODES, MODULES, ADDED = 1, 2, 5, 2, 1000  # strings from ADDED on are those of names
FIRST_MODULE = 3 + PYTHON_CODES
NODE = np.dtype([("parent", "<u4"), ("code", "<u4"), ("line", "<u4")])
CODE = np.dtype([("kind", "<u2"), ("function", "<u4"), ("file", "<u4"), ("first_line", "<u4")])
MODULE = np.dtype([("path", "<u8"), ("identity", "<u8"), ("code", "<u8"), ("bias", "<u8")])


def contents(choice: random.Random, count: int) -> Contents:
    """Python frames and labels, native frames below a root of their own, and stacks that join both; an account at each
    of them but native frames."""
    codes = np.zeros(FIRST_MODULE + MODULES, CODE)
    codes["kind"] = CODE_PYTHON
    codes["kind"][LABEL], codes["kind"][STACK], codes["kind"][FIRST_MODULE:] = (
        CODE_LABEL,
        CODE_NATIVE_STACK,
        CODE_NATIVE,
    )
    codes["file"] = codes["function"] = np.arange(len(codes))
    modules = np.zeros(1 + MODULES, MODULE)
    modules["code"][1:] = modules["path"][1:] = np.arange(FIRST_MODULE, len(codes))
    nodes = np.zeros(2 + count, NODE)
    nodes[1]["code"] = STACK
    python, native, stacks = [0], [1], list[int]()
    for node in range(2, len(nodes)):
        what = choice.randrange(4)
        if what == 0:
            nodes[node] = choice.choice(python[-6:]), choice.randrange(3, FIRST_MODULE), choice.randrange(8)
            python.append(node)
        elif what == 1:
            nodes[node] = choice.choice(native[-6:]), choice.randrange(FIRST_MODULE, len(codes)), choice.randrange(8)
            native.append(node)
        elif what == 2:
            nodes[node] = choice.choice(python[-6:]), STACK, choice.choice(native)
            stacks.append(node)
        else:
            nodes[node] = choice.choice(python + stacks), LABEL, 0
    accounts = np.zeros(len(nodes), np.dtype([("node", "<u4")]))
    accounts["node"] = np.where((codes["kind"] == CODE_NATIVE)[nodes["code"]], 0, np.arange(len(nodes)))
    return Contents(Path(), {}, {"nodes": nodes, "codes": codes, "modules": modules, "accounts": accounts})


def naming(choice: random.Random, most: int) -> dict[tuple[str, int], list[NativePlace]]:
    """What is at each address of each module: none, one or several functions."""
    return {
        (str(module), address): [
            NativePlace(choice.choice("fgh"), choice.choice(["", "one.c"]), choice.randrange(2))
            for _ in range(choice.randint(0, most))
        ]
        for module in range(FIRST_MODULE, FIRST_MODULE + MODULES)
        for address in range(8)
    }


def model(given: Contents, names: dict[tuple[str, int], list[NativePlace]], frames: Frames) -> list[tuple[object, ...]]:
    """For each node its frames from the root on: a function at a line, or the number of the node."""
    nodes, kinds = given.tables["nodes"], given.tables["codes"]["kind"]
    paths: list[tuple[object, ...]] = [(0,), ()]
    for node in range(2, len(nodes)):
        parent, code, line = nodes[node].tolist()
        own: tuple[object, ...] = (node,)
        if kinds[code] == CODE_NATIVE:
            own = tuple((one.function, one.file, one.line, code) for one in names[str(code), line])
        elif kinds[code] == CODE_NATIVE_STACK:
            own = paths[line]
        elif kinds[code] == CODE_PYTHON and frames is Frames.native:
            own = ()
        paths.append(paths[parent] + own)
    return [paths[account] if account > 1 else (0,) for account in given.tables["accounts"]["node"].tolist()]


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

    assert shown(33) > 1000
    assert shown(4) <= 400


def test_outer_frames_that_would_fill_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_frames, "_MOST_ALWAYS", 0)
    monkeypatch.setattr(native_frames, "_MOST_FOR_EACH", 4)
    given = contents(random.Random(1), 0)
    depth = callers = 200  # a stack of so many frames below each of so many Python frames
    nodes = np.zeros(2 + depth + 2 * callers, NODE)
    nodes[1]["code"] = STACK
    nodes[2 : 2 + depth] = [(node - 1, FIRST_MODULE, node % 8) for node in range(2, 2 + depth)]
    nodes[2 + depth : -callers] = [(0, 3, line) for line in range(callers)]
    nodes[-callers:] = [(2 + depth + caller, STACK, 1 + depth) for caller in range(callers)]
    accounts = np.zeros(callers, np.dtype([("node", "<u4")]))
    accounts["node"] = np.arange(len(nodes) - callers, len(nodes))
    tables = {**given.tables, "nodes": nodes, "accounts": accounts}

    def name(_: Module, addresses: object) -> list[list[NativePlace]]:
        return [[NativePlace(str(address))] for address in addresses]  # type: ignore[attr-defined] # they are numbers

    found = native_frames.shown(Contents(Path(), {}, tables), Frames.mixed, str, lambda _: ADDED, name).tables
    assert callers < len(found["nodes"]) < 6 * len(nodes)
    for node in found["accounts"]["node"].tolist():
        assert found["codes"][found["nodes"][node]["code"]]["kind"] == CODE_NATIVE
        outermost = node
        while found["nodes"][outermost]["parent"]:
            outermost = int(found["nodes"][outermost]["parent"])
        assert found["nodes"][outermost]["code"] == 3


def given_frame(given: Contents, one: object) -> object:
    """The same of a frame of Python, which the model has by its node."""
    return one if isinstance(one, tuple) else tuple(given.tables["nodes"][one].tolist()[1:])
