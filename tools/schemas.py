"""Makes the JSON Schemas of what hiwater writes from the types of these documents.

python tools/schemas.py            writes the files
python tools/schemas.py --check    says which of them are not what their types make
"""

from __future__ import annotations

import json
import sys
import typing
from pathlib import Path
from typing import Any

import typing_extensions
from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

typing.TypedDict = typing_extensions.TypedDict  # pydantic asks for this one before Python 3.12

from hiwater.contrib.torch.estimate.batch import Search  # noqa: E402 – not before that
from hiwater.contrib.torch.estimate.result import EstimateData  # noqa: E402
from hiwater.report.export.check_json import CheckData  # noqa: E402
from hiwater.report.export.json_diff import DiffData  # noqa: E402
from hiwater.report.export.json_holders import HoldersData  # noqa: E402
from hiwater.report.export.json_kept import KeptData  # noqa: E402
from hiwater.report.export.json_leaks import LeaksData  # noqa: E402
from hiwater.report.export.report_document import ReportData  # noqa: E402
from hiwater.report.html.page_document import PageData  # noqa: E402

PACKAGE = Path(__file__).parent.parent / "src" / "hiwater"
DOCUMENTS: dict[str, tuple[str, Any]] = {
    "report/schemas/report": ("hiwater.report/3", ReportData | list[ReportData]),
    "report/schemas/page": ("hiwater.page/3", PageData),
    "report/schemas/diff": ("hiwater.diff/3", DiffData),
    "report/schemas/check": ("hiwater.check/1", CheckData),
    "contrib/torch/estimate/estimate": ("hiwater.estimate/1", EstimateData | Search),
    "report/schemas/kept": ("hiwater.kept/1", KeptData | list[KeptData]),
    "report/schemas/leaks": ("hiwater.leaks/1", LeaksData),
    "report/schemas/holders": ("hiwater.holders/1", HoldersData),
}
"""For each file the name of the schema, and the type."""


class _Generator(GenerateJsonSchema):
    """Numbers are sizes, counts, times and places, and not below zero, but for those of the type `Signed`."""

    def int_schema(self, schema: Any) -> dict[str, Any]:
        return {**super().int_schema(schema), "minimum": 0}

    def float_schema(self, schema: Any) -> dict[str, Any]:
        return {**super().float_schema(schema), "minimum": 0}

    def field_is_required(self, field: Any, total: bool) -> bool:
        """The members of a result that have a default are written, too."""
        return field["type"] == "dataclass-field" or super().field_is_required(field, total)

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        """With the descriptions of the members that a type has from others."""
        made = super().typed_dict_schema(schema)
        for base in filter(typing_extensions.is_typeddict, schema["cls"].__orig_bases__):
            for name, member in _made(base)[0]["properties"].items():
                if "description" in member:
                    made["properties"][name].setdefault("description", member["description"])
        return made


def schema_of(name: str, document: Any) -> dict[str, Any]:
    """The schema of a document that is called `name`."""
    root, definitions = _made(document)
    head = {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": name,
        "title": name.partition("/")[0].replace(".", " "),
    }
    return {**head, **root, "$defs": definitions}


def _made(document: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What pydantic makes of a type, and the definitions to which that refers."""
    # In a list any type has a config.
    adapter = TypeAdapter(list[document], config=ConfigDict(use_attribute_docstrings=True))
    made = _plain(adapter.json_schema(mode="serialization", schema_generator=_Generator))
    root, definitions = made["items"], made.get("$defs", {})
    return definitions.pop(root["$ref"].rpartition("/")[2]) if "$ref" in root else root, definitions


def _plain(schema: Any) -> Any:
    """Without titles, which repeat names, and defaults; each description in one line. A member may have these names."""
    if isinstance(schema, list):
        return list(map(_plain, schema))
    if not isinstance(schema, dict):
        return " ".join(schema.split()) if isinstance(schema, str) else schema
    return {
        key: {name: _plain(member) for name, member in value.items()}
        if key in ("properties", "$defs")
        else _plain(value)
        for key, value in schema.items()
        if key not in ("title", "default")
    }


def text_of(schema: dict[str, Any]) -> str:
    """One line for each definition: a change of one is a change of one line."""
    definitions = (f"{json.dumps(name)}: {_dumped(value)}" for name, value in schema["$defs"].items())
    head = (f"{json.dumps(key)}: {_dumped(value)}," for key, value in schema.items() if key != "$defs")
    return "\n".join(["{", *head, '"$defs": {', ",\n".join(definitions), "}", "}", ""])


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> int:
    """Write the files, or compare them."""
    status = 0
    for place, (name, document) in DOCUMENTS.items():
        path = PACKAGE / f"{place}.schema.json"
        text = text_of(schema_of(name, document))
        if "--check" not in sys.argv[1:]:
            path.write_text(text, "utf-8")
        elif path.read_text("utf-8") != text:
            print(f"{path} is not what its type makes: run `make schemas` and commit it")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
