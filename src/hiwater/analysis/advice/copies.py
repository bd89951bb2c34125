"""Copies of arrays and tables that could be views or the original: neither the copy nor the original is changed, kept or handed on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hiwater.analysis.advice.dtypes import dtype_of, named_dtype
from hiwater.analysis.advice.finding import Finding, Rule
from hiwater.analysis.advice.recorded import Bools, Recorded
from hiwater.analysis.advice.source_use import Module, Scope
from hiwater.capture.paths import Frame

_LARGE_BLOCK = 1 << 20
_PAGE = 4096


def copies(recorded: Recorded) -> Iterator[Finding]:
    """A line whose only large buffers at the peak are a copy of what another line of the same function still holds."""
    for frame, module, statement, accounts in recorded.statements(recorded.large_buffers(_LARGE_BLOCK)):
        scope = module.scope(statement)
        found = _copy_in(module, statement)
        if scope is None or found is None:
            continue
        expression, source, change = found
        made = module.value_of(scope, source.id)
        if made is None or made is statement or not _is_needless(module, scope, statement, expression, source):
            continue
        if _is_astype(expression) and not _keeps_dtype(module, expression, made):
            continue
        originals = recorded.of_lines(frame.file, made.lineno, made.end_lineno or made.lineno)
        held, copied = recorded.at_peak(originals & recorded.is_kind("native", "mapping")), recorded.at_peak(accounts)
        # With numpy.arange() the line has the index besides.
        if held + _PAGE < copied // (2 if isinstance(expression, ast.Subscript) else 1):
            continue
        yield _finding(recorded, frame, accounts, (made.lineno, held), change)


def _finding(recorded: Recorded, frame: Frame, accounts: Bools, original: tuple[int, int], change: str) -> Finding:
    line, held = original
    evidence = (
        recorded.figure("the copy, with all that this line allocates", recorded.at_peak(accounts), "at the peak"),
        recorded.figure(f"its source, made in line {line} and live at the same time", held, "at the peak"),
    )
    return Finding(Rule.copy, frame, evidence, recorded.saved_at_peak(accounts), change)


def _copy_in(module: Module, statement: ast.stmt) -> tuple[ast.expr, ast.Name, str] | None:
    """The one expression of a plain statement that copies what a name stands for, this name, and what to write instead."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return):
        return None
    found = [one for node in ast.walk(statement) for one in _copied(module, node)]
    return found[0] if len(found) == 1 else None


def _copied(module: Module, node: ast.AST) -> Iterator[tuple[ast.expr, ast.Name, str]]:
    if isinstance(node, ast.Subscript):
        index, whole = node.slice, node.value
        is_range = isinstance(index, ast.Call) and module.called(index.func) == "numpy.arange"
        if is_range and isinstance(whole, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node, whole, f"Index {whole.id} with a slice, which is a view, instead of numpy.arange()."
    if not isinstance(node, ast.Call):
        return
    function, name = node.func, module.called(node.func)
    if name in ("numpy.copy", "numpy.array") and len(node.args) == 1 and not node.keywords:
        source: ast.expr = node.args[0]
        change = "Use {0} itself." if name == "numpy.copy" else "Use numpy.asarray({0}), which does not copy an array."
    elif isinstance(function, ast.Attribute) and function.attr in ("copy", "flatten", "astype"):
        source = function.value
        if len(node.args) != (function.attr == "astype") or node.keywords:
            return
        change = {
            "copy": "Use {0} itself.",
            "flatten": "Use {0}.ravel(), which is a view of an array in one piece.",
            "astype": "Use {0} itself, or astype(…, copy=False): it has this dtype already.",
        }[function.attr]
    else:
        return
    if isinstance(source, ast.Name):
        yield node, source, f"{change.format(source.id)} Nothing in this function changes {source.id} or the copy."


def _is_needless(module: Module, scope: Scope, statement: ast.stmt, expression: ast.expr, source: ast.Name) -> bool:
    """Whether the copy and its source are only read, so that one object serves for both."""
    if not module.is_only_read(scope, source.id, besides=source):
        return False
    above = module.parent(expression)
    if above is statement and isinstance(statement, ast.Assign):
        (target,) = statement.targets if len(statement.targets) == 1 else (None,)
        is_name = isinstance(target, ast.Name) and module.value_of(scope, target.id) is statement
        return is_name and module.is_only_read(scope, target.id)  # type: ignore[union-attr]  # is_name says that it is one
    # In arithmetic NumPy reuses a temporary copy for the result, and leaving it out saves nothing.
    return isinstance(above, ast.Call | ast.Attribute) and module.is_read(expression, scope)


def _is_astype(expression: ast.expr) -> bool:
    return (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Attribute)
        and expression.func.attr == "astype"
    )


def _keeps_dtype(module: Module, expression: ast.expr, made: ast.Assign) -> bool:
    """Whether `astype` is asked for the dtype that its array was made with."""
    assert isinstance(expression, ast.Call)
    wanted = named_dtype(module, expression.args[0])
    return wanted is not None and wanted == dtype_of(module, made.value)
