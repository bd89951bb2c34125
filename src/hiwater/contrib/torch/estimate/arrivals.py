"""In which order storages came to the card while a model was built: it decides where they lie in the card's segments.

A storage comes when it is made there, or when it is moved (`module.cuda()` moves the parts of a module one by one).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_numbers = itertools.count()


def note(*values: Any) -> None:
    """These tensors are on the card now."""
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            vars(value.untyped_storage()).setdefault("_arrival", next(_numbers))


def is_noted(values: Any) -> bool:
    return any(isinstance(value, torch.Tensor) and of(value) < math.inf for value in tree_leaves(values))


def of(tensor: torch.Tensor) -> float:
    """A number to sort by; of what was never moved, the last."""
    found: float = math.inf
    if tensor.layout == torch.strided:
        found = vars(tensor.untyped_storage()).get("_arrival", math.inf)
    return found
