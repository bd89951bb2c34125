"""The script for a machine with a GPU runs over the double, so that it is known to work before there is a card."""

import json
import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import gpu_golden
from packages import skip_without
from places import ROOT

skip_without("torch")

SOURCES = ROOT / "src"
SCRIPT = ROOT / "tools" / "on_a_gpu.py"
CHECKS = ("recorded", "breakdown", "pools", "history", "shortage", "processes")
GOLDEN = {"breakdown", "pools", "history", "shortage"}


def run(python: Path | str, *words: object, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [python, SCRIPT, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environment)


def environment_with_torch(folder: Path) -> Path:
    """An environment that alone sees the packages of this interpreter, torch among them, and has no hiwater: no .pth
    file is read there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "packages.pth").write_text(sysconfig.get_path("platlib"))
    return folder / "bin" / "python"


def wheel(folder: Path) -> None:
    """hiwater's wheel for this interpreter, of what is installed and of the sources. pip would build all of it anew."""
    installed = distribution("hiwater")
    files = {
        str(path): path.locate() for path in installed.files or [] if path.suffix != ".pyc" and ".." not in path.parts
    }
    files |= {
        str(path.relative_to(SOURCES)): path
        for path in (SOURCES / "hiwater").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    tag = (installed.read_text("WHEEL") or "").partition("Tag: ")[2].split()[0]
    folder.mkdir()
    with ZipFile(folder / f"hiwater-{installed.version}-{tag}.whl", "w") as packed:
        kept = {name: path for name, path in files.items() if "_editable_" not in name and not name.endswith("/RECORD")}
        for name, path in kept.items():
            packed.write(path, name)
        record = f"hiwater-{installed.version}.dist-info/RECORD"
        packed.writestr(record, "".join(f"{name},,\n" for name in [*kept, record]))


def test_the_checks_hold_over_the_double_in_an_environment_of_its_own_without_an_index(tmp_path: Path) -> None:
    python = environment_with_torch(tmp_path / "environment")
    wheel(tmp_path / "wheels")
    without_index = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PIP_NO_INDEX": "1"}
    words = ("--double", "--wheels", tmp_path / "wheels", "--out", tmp_path / "out", *CHECKS)
    done = run(python, *words, environment=without_index)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {name: found["held"] for name, found in said["results"].items()} == dict.fromkeys(CHECKS, True)
    assert said["about"]["hiwater"] == "a wheel brought along"
    assert [
        line for line in (tmp_path / "out" / "table.md").read_text().splitlines() if line.startswith("- card: none")
    ]
    golden = json.loads((tmp_path / "out" / "golden.json").read_text())
    assert set(gpu_golden.replay(golden, tmp_path)) == GOLDEN


def test_without_a_card_it_says_so(tmp_path: Path) -> None:
    done = run(sys.executable, "--installed", "--out", tmp_path, environment=dict(os.environ))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("there is no card that torch can use")
