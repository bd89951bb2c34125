"""The table through which lower packages reach higher ones: its entries are text, which no checker of types or
imports follows."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from hiwater import _registry

TABLE = {name: value for name, value in vars(_registry).items() if name.isupper() and name != "TYPE_CHECKING"}


def entries_of(value: str | tuple[str, ...] | dict[str, str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value.values() if isinstance(value, dict) else value)


ENTRIES = [entry for value in TABLE.values() for entry in entries_of(value)]


def names_of(module: str) -> set[str]:
    """What a module defines, without importing it: some need IPython or torch."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    found = set()
    for statement in ast.parse(Path(spec.origin).read_text("utf-8")).body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            found.add(statement.name)
        elif isinstance(statement, ast.Assign):
            found |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_names_what_is_there(entry: str) -> None:
    module, _, attribute = entry.partition(":")
    assert not attribute or attribute in names_of(module)


def test_a_module_and_an_attribute_are_loaded() -> None:
    module = _registry.load("hiwater._os.sizes")
    assert _registry.load("hiwater._os.sizes:format_size") is module.format_size
