"""What source does with a name: each way to change, keep or hand on an object counts, and reads do not."""

import ast

import pytest

from hiwater.analysis.advice.source_use import Module

HEAD = "import numpy as np\ndef main():\n    a = np.ones(9)\n"
READS = [
    "a.sum()",
    "print(a)",
    "b = a + 1",
    "np.dot(a, a)",
    "a[1:].mean()",
    "len(a)",
    "a.shape",
    "t = 0\nt += a",
    "del a",
    "f'{a}'",
    "a.startswith('x')",
    "len(a.strip())",
    "a.strip().lower() == 'x'",
]
USES = [
    "a[0] = 1", "a += 1", "a.sort()", "a.fill(0)", "b = a", "b = a[1:]", "b = [a]", "work(a)", "return a", "np.sqrt(a, a)", "np.sqrt(a, out=a)",
    "a.sum(out=c)", "global a", "f = lambda: a", "eval('a.sort()')", "a.T[0] = 1", "a.shape = 3, 3", "yield a", "np = 1\nnp.sum(a)", "a.x = 1",
    "def inner(): return a", "[a for _ in b]", "x.add(a)", "print(a, file=a)", "sum = 1\nsum(a)", "for row in a: row += 1", "a[0] += 1", "np.add.at(a, 0, 1)",
    "b = a.strip()", "x.add(a.lower())", "b = a.split()[0]",
]  # fmt: skip


def is_read(body: str) -> bool:
    text = HEAD + "".join(f"    {line}\n" for line in body.splitlines())
    module = Module.of(text, is_script=True)
    assert module is not None
    statement = module.statement(3)
    assert isinstance(statement, ast.Assign)
    scope = module.scope(statement)
    return scope is not None and module.is_only_read(scope, "a")


@pytest.mark.parametrize("body", READS)
def test_a_read_is_no_use(body: str) -> None:
    assert is_read(body)


@pytest.mark.parametrize("body", USES)
def test_what_changes_keeps_or_hands_on_is_a_use(body: str) -> None:
    assert not is_read(body)


def test_text_that_is_no_python_is_no_module() -> None:
    assert Module.of("def (", is_script=True) is None
    assert Module.of("\0", is_script=True) is None
    assert Module.of("(" * 100_000, is_script=True) is None
    assert Module.of("a" + ".b" * 500, is_script=True) is None
    assert Module.of("a" + ".b" * 100, is_script=True) is not None


def test_names_of_a_library_belong_to_others_too() -> None:
    module = Module.of("a = 1\n", is_script=False)
    assert module is not None and module.scope(module.tree.body[0]) is None
