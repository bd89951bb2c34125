"""Holders of random object graphs against brute force with the collector's own functions; damaged searches; the
bounds of what is kept."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from children import run_hiwater
from hiwater.analysis.holders import find_holders
from hiwater.capture import opening
from hiwater.capture.holders import read_searches
from hiwater.capture.references import check_references
from hiwater.capture.tables import Tables
from hiwater.errors import CaptureError, HiwaterError
from recording import needs_engine, rounds

pytestmark = needs_engine

RANDOM_GRAPHS = """
    import gc, json, random, sys, types
    import hiwater

    CLASSES = []

    def graph(draw):
        # Each object is of a class of its own, so that each has a path of its own.
        nodes = []
        for number in range(draw.randrange(2, 25)):
            base = draw.choice([object, list, dict])
            made = type(f"Vertex{number}", (base,), {"__slots__": ("a", "b", "c")})
            CLASSES.append(made)  # or it would be the object that holds its class
            nodes.append(made())
        for number, node in enumerate(nodes):
            for name in "abc"[: draw.randrange(4)]:
                is_any, near = draw.random() < 0.3, min(len(nodes) - 1, number + draw.randrange(1, 4))
                to = nodes[draw.randrange(len(nodes))] if is_any else nodes[near]
                setattr(node, name, to)
            if isinstance(node, list):
                node.extend(bytes(draw.randrange(200, 900)) for _ in range(draw.randrange(3)))
            if isinstance(node, dict):
                node["key"] = bytearray(draw.randrange(200, 900))
        return nodes

    def reachable(roots, nodes, without=None):
        # The nodes, and what only they refer to, that is found from the roots.
        known, waiting = {}, [one for one in roots if one is not without]
        while waiting:
            one = waiting.pop()
            if id(one) in known or one is without:
                continue
            known[id(one)] = one
            waiting += [to for to in gc.get_referents(one) if not isinstance(to, (type, types.ModuleType, str))]
        return known

    problems = []
    for seed in range(SEEDS):
        draw = random.Random(seed)
        nodes = graph(draw)
        count = draw.randrange(1, 4)
        variables = {f"v{number}": draw.choice(nodes) for number in range(count)}
        module = types.ModuleType("held"); module.__dict__.update(variables); sys.modules["held"] = module
        roots = list(variables.values())
        found = reachable(roots, nodes)
        alive = [node for node in nodes if id(node) in found]
        expected = {}
        for node in alive:
            rest = reachable(roots, nodes, without=node)
            expected[type(node).__qualname__] = sum(sys.getsizeof(one) for key, one in found.items() if key not in rest)
        holders = {type(node).__qualname__: {type(one).__qualname__ for one in gc.get_referrers(node)}
            for node in alive}
        del nodes, node, roots, found, rest, alive
        gc.collect()
        gc.disable()
        said = hiwater.holders("Vertex*", limit=1000)
        gc.enable()
        got = {one.type_name: one for one in said.groups}
        if set(got) != set(expected):
            problems.append([seed, "types", sorted(set(got) ^ set(expected))])
            continue
        for name, bytes_ in expected.items():
            if got[name].retained_bytes != bytes_ or got[name].count != 1:
                problems.append([seed, name, got[name].retained_bytes, bytes_])
            parts = got[name].held_by.split()
            holder = parts[parts.index("of") + 1]
            if holder not in holders[name] and holder != "module":
                problems.append([seed, name, "held by", got[name].held_by, sorted(holders[name])])
        del variables, sys.modules["held"], module, said, got
    json.dump(problems, open("problems.json", "w"))
"""


def test_retained_sizes_and_holders_of_random_graphs_are_those_of_brute_force(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(RANDOM_GRAPHS).replace("SEEDS", str(rounds(30))))
    run_hiwater("run", "-q", "program.py", folder=tmp_path, check=True)
    assert json.loads((tmp_path / "problems.json").read_text()) == []


OLD_WORD = """
    import ctypes
    import hiwater

    class Rows(list):
        __slots__ = ()

    old = [ctypes.c_size_t() for _ in range(2_000)]
    rows = Rows(range(5_000))
    for word in old:
        # as is left in memory of a buffer that was there
        word.value = ctypes.c_size_t.from_address(id(rows) + 24).value
    kept = [[rows]]
    del rows
    (found,) = hiwater.holders("Rows").groups
    assert found.bytes > 5_000 * 8, found.bytes
"""


def test_the_items_of_a_list_are_its_own_whatever_else_has_their_address(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(OLD_WORD))
    run_hiwater("run", "-q", "program.py", folder=tmp_path, check=True)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    folder = tmp_path_factory.mktemp("holders")
    (folder / "program.py").write_text("rows = {n: [bytes(n)] for n in range(2000)}\n")
    run_hiwater("run", "-q", "--holders", "-o", "run.hiw", "program.py", folder=folder, check=True)
    return opening.read(folder / "run.hiw")


@pytest.mark.once
def test_groups_do_not_overlap_and_figures_add_up(tables: Tables) -> None:
    found = find_holders(tables, limit=10_000)
    (search,) = read_searches(tables)
    assert sum(group.retained_bytes for group in found.groups) + found.own_bytes <= found.bytes
    assert sum(group.retained_bytes for group in found.groups) > 0.5 * found.bytes
    assert sum(row.bytes for row in found.types) <= found.bytes and found.objects == search.objects
    held = np.bincount(search.blocks["path"], search.blocks["bytes"], len(search.paths) + 1)[1:]
    assert (held == search.paths["bytes"]).all(), "each path's blocks add up to its bytes"


@pytest.mark.once
@settings(max_examples=rounds(100))
@given(st.data())
def test_a_damaged_search_is_an_error_of_ours_or_is_shown(tables: Tables, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["holder_searches", "holder_paths", "holder_blocks", "holder_references"]))
    changed = tables[name].copy()
    field = data.draw(st.sampled_from(changed.dtype.names or ()))
    row = data.draw(st.integers(0, len(changed) - 1))
    largest = np.iinfo(changed.dtype[field]).max
    changed[field][row] = data.draw(st.sampled_from([0, 1, 2, 99, len(changed), largest, largest // 2]))
    damaged = replace(tables.contents, tables={**tables.contents.tables, name: changed})
    try:
        check_references(damaged.header, damaged.tables)
        find_holders(Tables(damaged), what=data.draw(st.sampled_from(["", "bytes", "program.py:1"])))
    except HiwaterError as error:
        assert isinstance(error, CaptureError) or error.exit_code == 2


@pytest.mark.once
def test_a_million_classes_and_deep_structures_stay_within_bounds(tmp_path: Path) -> None:
    source = """
        import hiwater
        classes = [type(f"Class{number}", (), {"made": number}) for number in range(20_000)]
        CHAIN = None
        for _ in range(200_000):
            CHAIN = [CHAIN]
        deep = {}
        at = deep
        for number in range(3000):
            at[number] = at = {}
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(source))
    run_hiwater("run", "-q", "--holders", "-o", "run.hiw", "program.py", folder=tmp_path, check=True)
    tables = opening.read(tmp_path / "run.hiw")
    (search,) = read_searches(tables)
    assert len(search.paths) <= 12_000 and len(search.blocks) <= 48_000 and len(search.references) <= 24_000
    assert not search.failure
    text = run_hiwater("holders", "run.hiw", folder=tmp_path, check=True).stdout
    assert len(text) < 20_000 and re.search(r"199,99\d × list", text)
