"""What `import hiwater` offers: few names, each of them there and on the API page."""

import re

import hiwater
import hiwater.compat
from places import ROOT

MOST = 18


def test_there_are_few_names_and_each_is_there() -> None:
    assert len(hiwater.__all__) <= MOST
    for module in (hiwater, hiwater.compat):
        assert [name for name in module.__all__ if getattr(module, name, None) is None] == []


def test_each_name_is_on_the_api_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = {
        name
        for line in re.findall(r"^::: hiwater\.(.+)$", page, re.MULTILINE)
        for name in (line, line.partition(".")[0])
    }
    assert {*hiwater.__all__} - {"__version__"} - listed == set()
    assert {f"compat.{name}" for name in hiwater.compat.__all__} - listed == set()
