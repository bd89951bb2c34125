"""What `import hiwater` offers: few names, each of them there and on the API page; and names that pages show."""

import importlib
import re

import hiwater
import hiwater.compat
from hiwater.errors import ExtraMissing
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


NO_NAMES = {"hiwater.pth", "hiwater.start", "hiwater.leaks"}  # files, and a format


def is_there(name: str) -> bool:
    """Whether a dotted name can be imported, as far as the library that it is for is here."""
    found, path = hiwater, "hiwater"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        try:
            if not hasattr(found, part):
                importlib.import_module(path)
            found = getattr(found, part)
        except ModuleNotFoundError as error:
            return not (error.name or "").startswith("hiwater")
        except ExtraMissing:
            return True
    return True


def test_each_name_on_a_page_is_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    names = {*re.findall(r"(?<![\w./-])hiwater(?:\.[A-Za-z]\w*)+(?![\w/-])", text)} - NO_NAMES
    assert len(names) > 50
    assert [name for name in sorted(names) if not is_there(name)] == []
