"""The tests' own rule: a test module imports helpers, and never another test module."""

import ast

from places import TESTS


def imported(text: str) -> set[str]:
    """The names of the modules that a module imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.rpartition(".")[2] for name in names}


def test_no_test_imports_from_another_test_module() -> None:
    modules = sorted(TESTS.rglob("test_*.py"))
    names = {module.stem for module in modules}
    assert len(names) == len(modules) > 100
    offenders = {module.name: imported(module.read_text("utf-8")) & names for module in modules}
    assert {name: found for name, found in offenders.items() if found} == {}
