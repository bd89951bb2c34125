"""What the types of documents say beyond Python's types. `tools/schemas.py` makes a JSON Schema of each document from
its type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any


class Keywords:
    """Keywords of JSON Schema for what is annotated with them; None takes one away."""

    def __init__(self, **keywords: Any) -> None:
        self._keywords = keywords

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        said = {**handler(core), **self._keywords}
        return {name: value for name, value in said.items() if value is not None}


Signed = Annotated[int, Keywords(minimum=None)]
SignedFloat = Annotated[float, Keywords(minimum=None)]
"""Numbers that may be below zero. All others in documents are sizes, counts, times and places, and may not."""
