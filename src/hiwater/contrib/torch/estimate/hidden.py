"""What operators allocate without showing it to torch's dispatcher, as the tracker is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class HiddenStorage(NamedTuple):
    """The bytes of a storage that an operator allocates besides its results. With a category it is kept, otherwise it
    is freed when the operator ends. One that is early is made before the results. One that may not be made has no size,
    but the largest that is possible, `most`."""

    size: int
    category: str = ""
    is_early: bool = False
    most: int = 0


Source = Callable[[Any, tuple[Any, ...], dict[str, Any]], Iterable[HiddenStorage]]
"""What a call of an operator allocates: the operator, its arguments and its keywords are given."""
