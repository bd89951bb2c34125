"""The page on security names the tests that show what it promises."""

from __future__ import annotations

import re
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]


def test_each_threat_has_tests_that_exist() -> None:
    text = (TREE / "docs" / "security.md").read_text("utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| ") and "`tests/" in row]
    assert len(rows) >= 10
    named = {name for row in rows for name in re.findall(r"`(tests/[\w/]+\.py)`", row)}
    assert sorted(name for name in named if not (TREE / name).is_file()) == []
    assert {path.name for path in (TREE / "tests" / "safety").glob("test_*.py")} - {Path(__file__).name} <= {
        Path(name).name for name in named
    }
