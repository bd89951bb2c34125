"""Arrays of float64 whose values were of 16 bits or fewer, or float32: float32 has every one of these values exactly."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hiwater.analysis.advice.dtypes import dtype_of, named_dtype
from hiwater.analysis.advice.finding import Finding, Rule
from hiwater.analysis.advice.recorded import Recorded
from hiwater.analysis.advice.source_use import Module, Scope

_LARGE_BLOCK = 1 << 20
_EXACT_IN_FLOAT32 = frozenset({"bool", "int8", "uint8", "int16", "uint16", "float16", "float32"})
_CONDITION = "The values fit float32 exactly. What is computed from them has 7 significant digits then instead of 16: do it only if these are enough."


def float_widths(recorded: Recorded) -> Iterator[Finding]:
    """A line `name = source.astype(float64)`, where the source's text says that it has narrower values."""
    for frame, module, statement, accounts in recorded.statements(recorded.large_buffers(_LARGE_BLOCK)):
        scope, source = module.scope(statement), _widened(module, statement)
        if scope is None or source is None or _is_stored_to(module, scope, statement):
            continue
        made = module.value_of(scope, source)
        dtype = None if made is None else dtype_of(module, made.value)
        if dtype not in _EXACT_IN_FLOAT32:
            continue
        evidence = (recorded.figure(f"float64, made of {dtype}", recorded.at_peak(accounts), "at the peak"),)
        saving = recorded.saved_at_peak(accounts, 0.5)
        yield Finding(Rule.float_width, frame, evidence, saving, "Use float32 instead of float64.", _CONDITION)


def _widened(module: Module, statement: ast.stmt) -> str | None:
    """The name of the array whose values an assignment turns into float64."""
    value = statement.value if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr != "astype":
        return None
    if not value.args or named_dtype(module, value.args[0]) != "float64" or not isinstance(value.func.value, ast.Name):
        return None
    return value.func.value.id


def _is_stored_to(module: Module, scope: Scope, statement: ast.stmt) -> bool:
    """Whether the program gives this name, or elements of it, other values: those may need 64 bits."""
    assert isinstance(statement, ast.Assign)
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or module.value_of(scope, target.id) is not statement:
        return True
    for use in module.uses(scope, target.id):
        above = module.parent(use)
        while isinstance(above, ast.Subscript | ast.Attribute):
            if isinstance(above.ctx, ast.Store):
                return True
            above = module.parent(above)
        if isinstance(above, ast.AugAssign) and above.value is not use:
            return True
    return False
