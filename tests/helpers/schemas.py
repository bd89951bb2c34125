"""Holds what hiwater writes against the schemas that it comes with.

A schema is held against JSON Schema's own rules once: for most documents here that would take longer than all the rest.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema
from referencing import Registry, Resource


@cache
def schema_of(view: str) -> Any:
    """The schema of a view: page, report, diff or estimate."""
    folder = files("hiwater.contrib.torch.estimate") if view == "estimate" else files("hiwater.report") / "schemas"
    return json.loads((folder / f"{view}.schema.json").read_text("utf-8"))


@cache
def validator_of(view: str) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema_of(view))
    # The page's schema speaks of the report's as of the file beside it.
    beside: Registry[Any] = Registry().with_resource(
        "hiwater.page/report.schema.json", Resource.from_contents(schema_of("report"))
    )
    return jsonschema.Draft202012Validator(schema_of(view), registry=beside)


def check(said: Any, view: str) -> None:
    """Raise ValidationError where `said` is not what the view's schema promises."""
    validator_of(view).validate(said)
