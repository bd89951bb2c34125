"""Holds what hiwater writes against the schemas that it comes with. jsonschema would take a second for each ten
thousand stacks of a report."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema_rs

_BASE = "json-schema:///hiwater/"


@cache
def schema_of(view: str) -> Any:
    """The schema of a view: page, report, diff or estimate."""
    folder = files("hiwater.contrib.torch.estimate") if view == "estimate" else files("hiwater.report") / "schemas"
    return json.loads((folder / f"{view}.schema.json").read_text("utf-8"))


@cache
def validator_of(view: str) -> jsonschema_rs.Draft202012Validator:
    jsonschema_rs.meta.validate(schema_of(view))
    # The page's schema speaks of the report's as of the file beside it.
    beside = jsonschema_rs.Registry([(_BASE + "report.schema.json", _nameless("report"))])
    return jsonschema_rs.Draft202012Validator(_nameless(view), registry=beside, base_uri=_BASE + "view.schema.json")


def _nameless(view: str) -> Any:
    """The schema without its own identity, from which what it refers to would be looked for elsewhere."""
    return {name: value for name, value in schema_of(view).items() if name != "$id"}


def check(said: Any, view: str) -> None:
    """Raise ValidationError where `said` is not what the view's schema promises."""
    validator_of(view).validate(said)
