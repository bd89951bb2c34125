"""Holds what hiwater writes against the schemas that it comes with.

A schema is held against JSON Schema's own rules once: for most documents here that would take longer than all the rest. What is
plainly right is not given to jsonschema, which would take a second for each ten thousand stacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema
from jsonschema.validators import extend
from referencing import Registry, Resource

_TYPES = {"integer": int, "string": str, "boolean": bool, "null": type(None), "object": dict, "array": list}
_ASKS_FOR = {"type", "minimum", "enum", "properties", "required", "items", "description"}
_FOUND: dict[int, Any] = {}
"""What a schema refers to, by its identity: schemas are read once."""


def _is_plainly_right(value: Any, schema: Any, resolver: Any) -> bool:
    """Whether a value is as the schema asks, where that asks for nothing but what is easy to tell. False says nothing."""
    if not isinstance(schema, dict):
        return False
    if "$ref" in schema:
        if resolver is None or schema.keys() - {"$ref", "description"}:
            return False
        if id(schema) not in _FOUND:
            _FOUND[id(schema)] = resolver.lookup(schema["$ref"])
        found = _FOUND[id(schema)]
        return _is_plainly_right(value, found.contents, found.resolver)
    kinds = schema.get("type")
    if not schema.keys() <= _ASKS_FOR or type(value) not in [
        _TYPES.get(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])
    ]:
        return False
    if "enum" in schema:
        return type(value) is str and value in schema["enum"]
    if type(value) is int:
        return value >= schema.get("minimum", value)
    if type(value) is list:
        return "items" not in schema or all(_is_plainly_right(one, schema["items"], resolver) for one in value)
    if type(value) is not dict:
        return True
    return all(name in value for name in schema.get("required", ())) and all(
        name not in value or _is_plainly_right(value[name], asked, resolver)
        for name, asked in schema.get("properties", {}).items()
    )


def _properties(validator: Any, properties: Mapping[str, Any], instance: Any, schema: Any) -> Iterator[Any]:
    """What jsonschema does for `properties`, but for values that are plainly right."""
    if not validator.is_type(instance, "object"):
        return
    resolver = getattr(validator, "_resolver", None)
    for name, asked in properties.items():
        if name in instance and not _is_plainly_right(instance[name], asked, resolver):
            yield from validator.descend(instance[name], asked, path=name, schema_path=name)


_Validator = extend(jsonschema.Draft202012Validator, {"properties": _properties})


@cache
def schema_of(view: str) -> Any:
    """The schema of a view: page, report, diff or estimate."""
    folder = files("hiwater.contrib.torch.estimate") if view == "estimate" else files("hiwater.report") / "schemas"
    return json.loads((folder / f"{view}.schema.json").read_text("utf-8"))


@cache
def validator_of(view: str) -> Any:
    jsonschema.Draft202012Validator.check_schema(schema_of(view))
    # The page's schema speaks of the report's as of the file beside it.
    beside: Registry[Any] = Registry().with_resource(
        "hiwater.page/report.schema.json", Resource.from_contents(schema_of("report"))
    )
    return _Validator(schema_of(view), registry=beside)


def check(said: Any, view: str) -> None:
    """Raise ValidationError where `said` is not what the view's schema promises."""
    validator_of(view).validate(said)
