"""Holds what hiwater writes against the schemas that it comes with: each member has to be described. jsonschema would
take a second for each ten thousand stacks of a report."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema_rs


@cache
def schema_of(view: str) -> Any:
    """The schema of a view: page, report, diff or estimate."""
    folder = files("hiwater.contrib.torch.estimate") if view == "estimate" else files("hiwater.report") / "schemas"
    return json.loads((folder / f"{view}.schema.json").read_text("utf-8"))


@cache
def validator_of(view: str) -> jsonschema_rs.Draft202012Validator:
    jsonschema_rs.meta.validate(schema_of(view))
    return jsonschema_rs.Draft202012Validator(_closed(schema_of(view)))


def _closed(schema: Any) -> Any:
    """The schema without room for members that later versions may add."""
    if isinstance(schema, list):
        return list(map(_closed, schema))
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    return (
        {**closed, "additionalProperties": False}
        if schema.get("type") == "object" and "properties" in schema
        else closed
    )


def check(said: Any, view: str) -> None:
    """Raise ValidationError where `said` is not what the view's schema promises."""
    validator_of(view).validate(said)
