"""Lists that are built, read once and dropped: an iterator gives the same values one at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from hiwater.analysis.advice.finding import Finding, Rule
from hiwater.analysis.advice.recorded import Recorded
from hiwater.analysis.advice.source_use import Module, Scope, names_in

_READ_ONCE = frozenset({"sum", "min", "max", "any", "all"})
_LAZY = frozenset({"map", "filter", "zip", "range", "enumerate"})
_STOP_EARLY = frozenset({"any", "all"})


def lists(recorded: Recorded) -> Iterator[Finding]:
    """A line that builds a list, where its source shows that the list is gone through once and nothing keeps its elements."""
    for frame, module, statement, accounts in recorded.statements(recorded.is_kind("python")):
        scope = module.scope(statement)
        if scope is None or not (change := _change(module, scope, statement)):
            continue
        blocks = int(np.maximum(recorded.peak.blocks[accounts], 0).sum())
        kept = int(np.maximum(recorded.end.bytes[accounts], 0).sum())  # elements that something holds all the same
        evidence = (
            recorded.figure("the list and its elements", recorded.at_peak(accounts), "at the peak"),
            recorded.figure("in", blocks, "at the peak", "blocks"),
            recorded.figure("of these still live", kept, "at the end"),
        )
        yield Finding(Rule.list, frame, evidence, recorded.saved_at_peak(accounts, kept=kept), change)


def _change(module: Module, scope: Scope, statement: ast.stmt) -> str:
    """What to write instead of the list that a statement builds; "" if it is needed, or may be."""
    if isinstance(statement, ast.For):
        change = _lazily(module, statement.iter)
        return change if change and _is_plain_loop(module, scope, statement, statement.iter) else ""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        name, change = statement.targets[0].id, _lazily(module, statement.value)
        if change:
            return change if _is_read_next(module, scope, statement, name) else ""
    built = [node for node in ast.walk(statement) if isinstance(node, ast.expr) and _lazily(module, node)]
    is_simple = isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Return)
    if not is_simple or len(built) != 1 or not _is_read_by_call(module, statement, built[0], built[0]):
        return ""
    return _lazily(module, built[0])


def _lazily(module: Module, node: ast.expr) -> str:
    """How to get the values of a list one at a time; "" for what builds no such list."""
    if isinstance(node, ast.ListComp):
        return "Use a generator expression: the same text in parentheses instead of brackets."
    if not isinstance(node, ast.Call) or node.keywords:
        return ""
    if isinstance(node.func, ast.Attribute) and node.func.attr == "readlines" and not node.args:
        return "Go through the file itself instead of readlines()."
    if module.called(node.func) == "list" and len(node.args) == 1:
        inner = node.args[0]
        is_lazy = isinstance(inner, ast.Call) and module.called(inner.func) in _LAZY
        if is_lazy or isinstance(inner, ast.GeneratorExp):
            return "Leave out list(): what is inside gives its values one at a time."
    return ""


def _is_read_by_call(module: Module, statement: ast.stmt, read: ast.expr, built: ast.expr) -> bool:
    """Whether a statement does no more with the list `read` than to call one of Python's functions that go through it once. `built` is the
    expression that builds it."""
    call = module.parent(read)
    if not isinstance(call, ast.Call) or call.args != [read] or call.keywords:
        return False
    name = module.called(call.func)
    inside = set(ast.walk(built))
    others = [
        node for node in ast.walk(statement) if isinstance(node, ast.Call) and node not in inside and node is not call
    ]
    return name in _READ_ONCE and not others and not (name in _STOP_EARLY and _has_effects(module, built))


def _is_read_next(module: Module, scope: Scope, statement: ast.Assign, name: str) -> bool:
    """Whether the next statement goes through the list `name`, and no other one has it."""
    body, uses = module.body_of(statement), module.uses(scope, name)
    loads = [use for use in uses if isinstance(use.ctx, ast.Load)]
    place = body.index(statement) + 1 if statement in body else len(body)
    if module.value_of(scope, name) is not statement or len(loads) != 1 or place >= len(body):
        return False
    following = body[place]
    if isinstance(following, ast.For):
        return following.iter is loads[0] and _is_plain_loop(module, scope, following, statement.value)
    is_simple = isinstance(following, ast.Assign | ast.AugAssign | ast.Expr | ast.Return)
    return (
        is_simple
        and loads[0] in set(ast.walk(following))
        and _is_read_by_call(module, following, loads[0], statement.value)
    )


def _is_plain_loop(module: Module, scope: Scope, loop: ast.For, built: ast.expr) -> bool:
    """Whether a loop keeps no element, and can be seen to change nothing that the elements are made from."""
    if not isinstance(loop.target, ast.Name) or loop.orelse:
        return False
    used = {name for statement in loop.body for name in names_in(statement)}
    own = {node.id for node in ast.walk(built) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in (node for statement in loop.body for node in ast.walk(statement)):
        if isinstance(node, ast.Break | ast.Return | ast.Raise) and _has_effects(module, built):
            return False
        if isinstance(node, ast.Call) and not module.is_known(node):
            return False
    shared = (set(names_in(built)) - own) & used
    return not shared and module.is_only_read(scope, loop.target.id)


def _has_effects(module: Module, built: ast.expr) -> bool:
    """Whether making the elements may do something besides: then all of them have to be made."""
    return any(isinstance(node, ast.Call) and not module.is_known(node) for node in ast.walk(built))
