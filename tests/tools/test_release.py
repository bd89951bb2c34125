"""What a release needs of the sources: one version, a workflow that builds what `make wheels` builds."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hiwater
from children import run_python
from places import ROOT

ASK = "import release_check; print(release_check.version(), *release_check.other_versions())"


def _said(program: str) -> list[str]:
    """The words that a program beside the tools prints."""
    done = run_python("-c", program, folder=ROOT / "tools", check=True)
    return done.stdout.split()


def test_the_version_is_the_same_everywhere() -> None:
    assert _said(ASK) == [hiwater.__version__] == [importlib.metadata.version("hiwater")]


def test_what_a_release_lacks_is_named(tmp_path: Path) -> None:
    made = ("py3-none-any.whl", "cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl")
    for name in made:
        (tmp_path / f"hiwater-{hiwater.__version__}-{name}").touch()
    ask = f"import pathlib, release_check as r; r.DIST = pathlib.Path({str(tmp_path)!r}); print(*r.lacking())"
    said = _said(ask)
    assert len(said) == 1 + 5 * 4 - 1  # the source distribution, and all wheels with an engine but one
    assert f"hiwater-{hiwater.__version__}.tar.gz" in said
    assert f"hiwater-{hiwater.__version__}-cp315-*musllinux_1_2_aarch64.whl" in said


@pytest.mark.parametrize(
    ("wheel", "fits"),
    [
        ("cp313-cp313-manylinux2014_x86_64.manylinux_2_17_x86_64", "True False False"),
        ("cp313-cp313-musllinux_1_2_x86_64", "False True False"),
        ("cp313-cp313-musllinux_1_2_aarch64", "False False True"),
        ("cp312-cp312-musllinux_1_2_x86_64", "False False False"),
        ("py3-none-any", "False False False"),
    ],
)
def test_a_wheel_is_tried_where_it_is_for(wheel: str, fits: str) -> None:
    made = "('python', '3.13', '3.13.5', '', '', None, *parts)"
    ask = (
        f"import pathlib, test_pythons as t, release_check as r; wheel = pathlib.Path('hiwater-1.0-{wheel}.whl');"
        f"print(*(bool(r.suits(wheel, t.Interpreter{made})) for parts in"
        "(('', 'x86_64'), ('musl', 'x86_64'), ('musl', 'aarch64'))))"
    )
    assert _said(ask) == fits.split()


def test_an_emulated_interpreter_needs_no_pip_of_its_own(tmp_path: Path) -> None:
    """Under qemu, pip is not unpacked, and no script is copied from where the emulator does not look."""
    made = f"t.Interpreter({sys.executable!r}, '3.13', '3.13.5', '', {sys.executable!r}, None, '', 'another')"
    ask = f"import pathlib, test_pythons as t; place = t.Place({made}, pathlib.Path({str(tmp_path)!r}));"
    made_it, executable = _said(f"{ask} print(place.make(), place.executable)")
    assert made_it == "True"
    there = tmp_path / "3.13-another/bin"
    assert executable == str(there / "python")
    assert not [path.name for path in there.iterdir() if "thon" not in path.name]
    ask = "import importlib.util, sys; print(sys.prefix, importlib.util.find_spec('pip'))"
    done = subprocess.run([executable, "-c", ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(there.parent), "None"]


def test_commands_of_readme_are_found() -> None:
    ask = "import readme_commands as r; print(*r.commands(open('../README.md', encoding='utf-8').read()))"
    found = " ".join(_said(ask))
    for command in ("make demo", "hiwater run etl.py", "hiwater sample --interval 1ms -- make", "hiwater doctor"):
        assert command in found
    assert "#" not in found


def test_a_part_that_there_is_not_is_refused() -> None:
    done = run_python(ROOT / "tools/release_check.py", "whels")
    assert done.returncode == 2
    assert "whels: build, versions" in done.stderr


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
