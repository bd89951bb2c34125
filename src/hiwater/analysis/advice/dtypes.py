"""What a program's source says of the dtypes of its arrays."""

from __future__ import annotations

import ast
import re

import numpy as np

from hiwater.analysis.advice.source_use import Module

_NAME = re.compile(r"(?:u?int(?:8|16|32|64)|float(?:16|32|64)|bool_?)\Z")
_OF_PYTHON = {"float": "float64", "int": "int64", "bool": "bool"}
_MAKE_FLOAT64 = frozenset(
    f"numpy.{name}"
    for name in [
        "zeros",
        "ones",
        "empty",
        "linspace",
        "random.rand",
        "random.randn",
        "random.random",
        "random.standard_normal",
        "random.normal",
        "random.uniform",
    ]
)
_TAKE_DTYPE = frozenset(
    f"numpy.{name}"
    for name in [
        "zeros",
        "ones",
        "empty",
        "full",
        "arange",
        "linspace",
        "array",
        "asarray",
        "fromfile",
        "frombuffer",
        "random.randint",
    ]
)


def named_dtype(module: Module, node: ast.expr) -> str | None:
    """The dtype that an expression names: "float64" for `float`, `np.float64`, "float64" and "f8"; None for others."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            name = np.dtype(node.value).name
        except TypeError:
            return None
        return name if _NAME.match(name) else None
    called = module.called(node)
    if called in _OF_PYTHON:
        return _OF_PYTHON[called]
    library, _, name = called.partition(".")
    return name.rstrip("_") if library == "numpy" and _NAME.match(name) else None


def dtype_of(module: Module, value: ast.expr) -> str | None:
    """The dtype of the array that a call makes, as far as its text says; None where it does not."""
    if not isinstance(value, ast.Call):
        return None
    called = module.called(value.func)
    given = [keyword.value for keyword in value.keywords if keyword.arg == "dtype"]
    if given:
        return named_dtype(module, given[0]) if called in _TAKE_DTYPE else None
    if called in ("numpy.zeros", "numpy.ones", "numpy.empty") and len(value.args) > 1:
        return named_dtype(module, value.args[1])
    is_plain = called in _MAKE_FLOAT64 and not any(keyword.arg is None for keyword in value.keywords)
    return "float64" if is_plain else None
