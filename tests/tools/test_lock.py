"""`requirements/dev.txt` has one version of each package that the gate installs, for each Python."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
LOCK = ROOT / "requirements/dev.txt"
ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]


def wanted():
    """What pyproject.toml asks for, and what .ci/run installs by name."""
    project = ABOUT["project"]
    yield from ABOUT["build-system"]["requires"] + project["dependencies"]
    for extra in ("test", "lint", "docs"):
        yield from project["optional-dependencies"][extra]
    for group in ABOUT["dependency-groups"].values():
        yield from group
    for names in re.findall(
        r"^(?:BUILD|SUITE|TESTED_ONCE)\+?=\(([^)]*)\)", (ROOT / ".ci/run").read_text(), re.MULTILINE
    ):
        yield from names.split()


@pytest.mark.parametrize("minor", [11, 12, 13, 14, 15])
def test_each_package_that_the_gate_installs_has_one_version_that_suits(minor):
    environment = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.7"}
    locked = {}
    for one in map(Requirement, LINES):
        if one.marker is None or one.marker.evaluate(environment):
            assert locked.setdefault(canonicalize_name(one.name), one) is one, one.name
    for one in map(Requirement, wanted()):
        (pin,) = locked[canonicalize_name(one.name)].specifier
        assert one.specifier.contains(pin.version, prereleases=True), f"{one}: `make lock` renews {pin}"


def test_each_line_is_an_exact_version_and_no_place_to_fetch_it_from():
    for line in LINES:
        assert re.fullmatch(r"[a-z\d][a-z\d-]*==[\d.]+(?:(?:a|b|rc|\.post)\d+)*(?: ; [^/]*)?", line), line
