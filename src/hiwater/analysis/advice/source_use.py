"""What a program's source does with a name: whether it is only read, so that a copy of it, or a list, is needed by nobody else.

All answers err to one side: what is not surely only a read counts as a use that needs the object.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

_DEEPEST = 200  # nodes in one another: what follows calls itself for each
Scope = ast.Module | ast.FunctionDef
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_REACHES_NAMES = {"locals", "globals", "vars", "eval", "exec"}
_VALUES = frozenset({"shape", "size", "dtype", "ndim", "nbytes", "itemsize"})
_METHODS = frozenset(
    [
        "sum",
        "mean",
        "std",
        "var",
        "min",
        "max",
        "argmin",
        "argmax",
        "any",
        "all",
        "prod",
        "tolist",
        "tobytes",
        "item",
        "cumsum",
        "cumprod",
        "round",
        "nonzero",
        "trace",
        "count",
        "dot",
        "nunique",
        "describe",
    ]
)
_LIBRARY_UNARY = frozenset(
    [
        "sum",
        "mean",
        "std",
        "var",
        "median",
        "min",
        "max",
        "amin",
        "amax",
        "argmin",
        "argmax",
        "any",
        "all",
        "prod",
        "sqrt",
        "exp",
        "log",
        "log2",
        "log10",
        "sin",
        "cos",
        "tan",
        "abs",
        "absolute",
        "sign",
        "square",
        "cumsum",
        "isnan",
        "isfinite",
        "count_nonzero",
        "linalg.norm",
    ]
)
_LIBRARY_BINARY = frozenset(
    [
        "dot",
        "add",
        "subtract",
        "multiply",
        "divide",
        "matmul",
        "maximum",
        "minimum",
        "isclose",
        "allclose",
        "array_equal",
    ]
)
_TEXT_ANSWERS = frozenset(["startswith", "endswith", "find"])
_TEXT_METHODS = _TEXT_ANSWERS | {"strip", "lower", "upper", "split", "replace", "encode", "decode"}
_MAKERS = frozenset(["range", "zip", "enumerate", "list", "tuple", "bytes", "bytearray", "float", "int"])
_BUILTINS = frozenset(["len", "sum", "min", "max", "any", "all", "print", "float", "int", "abs", "str", "repr"])


@dataclass(frozen=True, eq=False)
class Module:
    """One source file. `is_script`: it is the program's first file, so that no other module uses its names."""

    tree: ast.Module
    is_script: bool
    _parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, *, is_script: bool) -> Self | None:
        """None for what this Python cannot parse, and for what is nested too deep for a person to read."""
        try:
            module = cls(ast.parse(text), is_script)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        depth: dict[ast.AST, int] = {module.tree: 0}
        for node in ast.walk(module.tree):  # outer ones first
            for child in ast.iter_child_nodes(node):
                module._parents[child] = node
                depth[child] = depth[node] + 1
        return module if max(depth.values()) <= _DEEPEST else None

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._parents.get(node)

    @cached_property
    def _modules(self) -> dict[str, str]:
        """What names of modules stand for: {"np": "numpy"}."""
        found = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    found[one.asname or one.name.partition(".")[0]] = (
                        one.name if one.asname else one.name.partition(".")[0]
                    )
        return found

    @cached_property
    def _bound(self) -> set[str]:
        """The names that the file gives a meaning of its own, modules apart."""
        names = {
            node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.ImportFrom):
                names.update(one.asname or one.name for one in node.names)
        return names

    def called(self, function: ast.AST) -> str:
        """The name of what is called: "numpy.sum" for `np.sum`, "len"; "" for what is the program's own, or no plain name."""
        root, dot, rest = _dotted(function).partition(".")
        if not root or root in self._bound or "*" in self._bound:
            return ""
        return f"{self._modules.get(root, '')}.{rest}" if dot else root

    @cached_property
    def _at_line(self) -> dict[int, list[ast.stmt]]:
        found: dict[int, list[ast.stmt]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt):
                header = node.body[0].lineno - 1 if isinstance(getattr(node, "body", None), list) else node.end_lineno  # type: ignore[attr-defined]  # compound statements have a body
                for line in range(node.lineno, max(node.lineno, header or 0) + 1):
                    found.setdefault(line, []).append(node)
        return found

    def statement(self, line: int) -> ast.stmt | None:
        """The one statement on a line; of a compound one, its head. None where there are several or none."""
        found = self._at_line.get(line, [])
        return found[0] if len(found) == 1 else None

    def scope(self, node: ast.AST) -> Scope | None:
        """The function or module that a statement belongs to. None where others can run or look in between: a class, a coroutine, a
        generator, the module level of a library, or a scope with `eval()` and the like."""
        above = self.parent(node)
        while above is not None and not isinstance(above, (*_NESTED, ast.Module)):
            above = self.parent(above)
        if not isinstance(above, ast.Module | ast.FunctionDef) or (
            isinstance(above, ast.Module) and not self.is_script
        ):
            return None
        for inner in ast.walk(above):
            if isinstance(inner, ast.Yield | ast.YieldFrom | ast.Await | ast.Global | ast.Nonlocal):
                return None
            if isinstance(inner, ast.Name) and inner.id in _REACHES_NAMES:
                return None
        return above

    def uses(self, scope: Scope, name: str) -> list[ast.Name]:
        """All places in a scope that name it."""
        return [node for node in ast.walk(scope) if isinstance(node, ast.Name) and node.id == name]

    def value_of(self, scope: Scope, name: str) -> ast.Assign | None:
        """The only statement that gives a name its value: `name = …`. None if there are others, or if it is an argument."""
        stores = [use for use in self.uses(scope, name) if isinstance(use.ctx, ast.Store)]
        if len(stores) != 1 or (isinstance(scope, ast.FunctionDef) and name in _arguments(scope)):
            return None
        assign = self.parent(stores[0])
        if isinstance(assign, ast.Assign) and len(assign.targets) == 1 and assign.targets[0] is stores[0]:
            return assign
        return None

    def is_only_read(self, scope: Scope, name: str, besides: ast.AST | None = None) -> bool:
        """Whether nothing in the scope changes the object that the name stands for, keeps it, or hands it on. `besides` is not looked at."""
        for use in self.uses(scope, name):
            is_changed = isinstance(use.ctx, ast.Store) and isinstance(self.parent(use), ast.AugAssign)
            is_used = isinstance(use.ctx, ast.Load) and use is not besides and not self.is_read(use, scope)
            if is_changed or is_used:
                return False
        return True

    def is_read(self, use: ast.expr, scope: Scope) -> bool:
        """Whether an expression's value is only read here: the object is neither changed, kept, nor handed on."""
        above = self.parent(use)
        if self._is_nested(use, scope):
            return False
        if isinstance(above, ast.BinOp | ast.UnaryOp | ast.Compare | ast.FormattedValue | ast.Expr):
            return True
        if isinstance(above, ast.AugAssign):
            return above.value is use and isinstance(above.target, ast.Name)
        if isinstance(above, ast.Subscript):
            return above.value is use and isinstance(above.ctx, ast.Load) and self.is_read(above, scope)
        if isinstance(above, ast.Attribute) and isinstance(above.ctx, ast.Load):
            call = self.parent(above)
            is_called = isinstance(call, ast.Call) and call.func is above
            if isinstance(call, ast.Call) and is_called and above.attr in _TEXT_METHODS:
                return not _writes(call) and (above.attr in _TEXT_ANSWERS or self.is_read(call, scope))
            return above.attr in (_METHODS if is_called else _VALUES) and (not is_called or not _writes(call))
        return isinstance(above, ast.Call) and self._reads(above, use)

    def _reads(self, call: ast.Call, use: ast.expr) -> bool:
        """Whether a call reads this argument of it and nothing more."""
        if _writes(call) or use not in call.args:
            return False
        name, place = self.called(call.func), call.args.index(use)
        library, _, function = name.partition(".")
        is_of_numpy = (function in _LIBRARY_UNARY and place == 0) or (function in _LIBRARY_BINARY and place < 2)
        return name in _BUILTINS or (library == "numpy" and is_of_numpy)

    def is_known(self, call: ast.Call) -> bool:
        """Whether a call is of a function of Python's or NumPy's, or of a method, that changes none of the program's names."""
        if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS | _TEXT_METHODS:
            return not _writes(call)
        name = self.called(call.func)
        library, _, function = name.partition(".")
        return (
            name in _BUILTINS
            or name in _MAKERS
            or (library == "numpy" and function in _LIBRARY_UNARY and not _writes(call))
        )

    def _is_nested(self, use: ast.AST, scope: Scope) -> bool:
        above = self.parent(use)
        while above is not None and above is not scope:
            if isinstance(above, (*_NESTED, *_COMPREHENSIONS)):
                return True
            above = self.parent(above)
        return False

    def body_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements among which it stands."""
        above = self.parent(statement)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(above, name, None)
            if isinstance(body, list) and statement in body:
                return body
        return []


def _arguments(function: ast.FunctionDef) -> set[str]:
    return {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}


def _writes(call: ast.AST | None) -> bool:
    """Whether a call of a method or of a function of NumPy may write somewhere else than into its result."""
    return isinstance(call, ast.Call) and any(keyword.arg in (None, "out", "inplace") for keyword in call.keywords)


def _dotted(node: ast.AST) -> str:
    """`np.random.rand` of such an expression; "" for others."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def names_in(node: ast.AST) -> Iterator[str]:
    """The names in a piece of source, without those of Python's own functions."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not hasattr(builtins, inner.id):
            yield inner.id
