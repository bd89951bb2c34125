"""The JSON Schemas hold documents to what their types say: bounds, choices, and no member that nobody described."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

import schemas

_FIGURE = {"before": 2, "after": 1, "change": -1, "percent": -50.0, "standard_error": 0, "within_error": False}


def _kept(**changed: Any) -> dict[str, Any]:
    line = {
        "group": "line", "function": "f", "file": "f.py", "line": 1, "bytes": 8, "blocks": 1, "by_age": [8, 0, 0, 0],
        "types": [], "held_by": None,
    }  # fmt: skip
    return {
        "schema": "hiwater.kept/1", "pid": 1, "argv": [], "at_ns": 0, "kind": "all", "snapshots": 0, "bytes": 8,
        "blocks": 1, "lines": [line | changed],
    }  # fmt: skip


def test_one_document_and_a_list_of_them_are_valid() -> None:
    schemas.check(_kept(), "kept")
    schemas.check([_kept(), _kept(by_age=None)], "kept")


@pytest.mark.parametrize(
    "changed",
    [{"blocks": -1}, {"bytes": 0}, {"bytes": 1.5}, {"group": "mine"}, {"by_age": [8]}, {"by_age": "new"}, {"more": 1}],
)
def test_what_a_type_does_not_say_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        schemas.check(_kept(**changed), "kept")


def test_a_change_may_be_below_zero_and_what_is_held_may_not() -> None:
    figure = jsonschema_rs.Draft202012Validator(schemas.schema_of("diff")["$defs"]["FigureData"])
    assert figure.is_valid(_FIGURE) and not figure.is_valid(_FIGURE | {"standard_error": -1})


def test_members_that_a_document_need_not_have_are_not_required() -> None:
    report = schemas.schema_of("report")["$defs"]["ReportData"]
    assert "groups" in report["properties"] and "groups" not in report["required"]
    assert {"process", "stacks", "totals"} <= set(report["required"])
    assert "description" in report["properties"]["devices"], "of a member that the type has from another"
