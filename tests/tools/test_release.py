"""What a release needs of the sources: one version, a workflow that builds what `make wheels` builds."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib

import pytest

import hiwater
from places import ROOT

ASK = "import release_check; print(release_check.version(), *release_check.other_versions())"


def _said(program: str) -> list[str]:
    """The words that a program beside the tools prints."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "tools", capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.split()


def test_the_version_is_the_same_everywhere() -> None:
    assert _said(ASK) == [hiwater.__version__] == [importlib.metadata.version("hiwater")]


def test_wheels_are_built_for_the_interpreters_that_are_supported() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = [one.rpartition(" ")[2] for one in about["project"]["classifiers"] if " Python :: 3." in f" {one}"]
    processors = _said("import wheels; print(*dict.fromkeys(target.processor for target in wheels.TARGETS))")
    versions = ",".join(name[2:] for name in names)
    assert about["tool"]["cibuildwheel"]["build"] == f"cp3{{{versions}}}-*linux_{{{','.join(processors)}}}"


def test_builds_in_another_root_have_no_launcher_of_this_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
    kept = "'CMAKE_CXX_COMPILER_LAUNCHER' in test_pythons.environment"
    said = _said(f"import pathlib, test_pythons; print({kept}(None), {kept}(pathlib.Path('/other')))")
    assert said == ["True", "False"]


@pytest.mark.parametrize("system", ["linux-64", "osx-arm64"])
def test_the_recipe_for_conda_asks_for_what_the_package_does(system: str) -> None:
    """`make release-check` has conda's own tools read it."""
    yaml = pytest.importorskip("yaml")
    (recipe,) = yaml.safe_load_all((ROOT / "conda/recipe.yaml").read_text())
    asked: list[str] = []
    for one in recipe["requirements"]["run"]:
        if isinstance(one, str):
            asked.append(one)
        elif one["if"] == "not linux" and not system.startswith("linux"):
            asked.append(one["then"])
    wanted = _said(f"import release_check; print(*release_check.dependencies({system!r}), sep='\\n')")
    assert " ".join(asked) == " ".join(["python", *wanted])
    assert recipe["requirements"]["host"][2:] == [
        word.replace(">=", " >=")
        for word in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    ]
