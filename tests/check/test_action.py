"""The GitHub Action and the hook of pre-commit: the files are read as their runners read them, and their commands
are run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from children import run_command
from recording import needs_engine

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
ACTION: Any = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
PROGRAM = "held = [bytearray(1000) for _ in range({})]\n"
SETTINGS = '[tool.hiwater.check]\nbaseline = "memory.json"\nprograms = { train = "train.py" }\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a program and its baseline."""
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(SETTINGS, "utf-8")
    (folder / "train.py").write_text(PROGRAM.format(1000), "utf-8")
    done = hiwater("check", "--update", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def environment() -> dict[str, str]:
    """Where `python` and `hiwater` are those of this interpreter."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def hiwater(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hiwater", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def run_step(
    folder: Path, step: dict[str, Any], **inputs: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """A shell step as GitHub runs it: `bash -e` with its variables, and the outputs that it sets."""
    values = {name: str(one["default"]) for name, one in ACTION["inputs"].items()} | inputs
    expressions = {f"${{{{ inputs.{name} }}}}": value for name, value in values.items()}
    variables = {name: expressions[text] for name, text in step["env"].items()}
    outputs, summary = folder.parent / "outputs", folder.parent / "summary"
    for file in (outputs, summary):
        file.write_text("", "utf-8")
    files = {"GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(summary), "RUNNER_TEMP": str(folder.parent)}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = run_command(command, folder=folder, env={**environment(), **variables, **files})
    said = dict(line.partition("=")[::2] for line in outputs.read_text("utf-8").splitlines())
    return done, {**said, "summary": summary.read_text("utf-8")}


def test_the_action_is_one_that_github_takes() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert {"name", "description", "inputs", "outputs", "runs"} <= set(ACTION)
    steps = ACTION["runs"]["steps"]
    assert all(step["shell"] == "bash" and step["run"] for step in steps)
    assert all("${{" not in step["run"] for step in steps), (
        "inputs reach the shell as variables alone: nothing is injected"
    )
    identifiers = {step["id"] for step in steps if "id" in step}
    for output in ACTION["outputs"].values():
        assert any(f"steps.{one}.outputs." in output["value"] for one in identifiers)
    assert all("default" in one and one["description"] for one in ACTION["inputs"].values())


@needs_engine
def test_the_steps_of_the_action_pass_and_fail_with_the_check(project: Path) -> None:
    step = ACTION["runs"]["steps"][-1]
    done, said = run_step(project, step)
    assert done.returncode == 0, done.stderr
    assert "::notice title=hiwater check::" in done.stdout
    assert said["summary"].startswith("### Memory")
    assert ElementTree.parse(said["junit"]).getroot().get("failures") == "0"
    assert [one.name for one in Path(said["captures"]).iterdir()] == ["train.hiw"]

    (project / "train.py").write_text(PROGRAM.format(2000), "utf-8")
    done, said = run_step(project, step, arguments="--tolerance '1%,1 KiB'", captures="new captures")
    assert done.returncode == 1, done.stderr
    assert "::error file=train.py,line=1," in done.stdout
    assert "❌" in said["summary"]
    assert ElementTree.parse(said["junit"]).getroot().get("failures") == "1"
    done, said = run_step(project, step, arguments="--baseline hiwater-captures")
    assert done.returncode == 1, done.stderr
    assert "grew most at the peak" in said["summary"]


@needs_engine
def test_a_wrong_request_fails_the_step_with_its_own_code(project: Path) -> None:
    done, said = run_step(project, ACTION["runs"]["steps"][-1], arguments="--tolerance many")
    assert done.returncode == 2
    assert "hiwater: 'many' is not a size" in done.stderr
    assert said["summary"] == ""


@needs_engine
def test_no_input_is_evaluated(project: Path) -> None:
    done, _ = run_step(
        project, ACTION["runs"]["steps"][-1], arguments="--baseline '$(touch evil)' ; touch evil `touch evil`"
    )
    assert done.returncode == 2, done.stderr
    assert not (project / "evil").exists()


def test_the_step_that_installs_gives_pip_one_word(tmp_path: Path) -> None:
    """What pip is given, as a pip that repeats its words has it."""
    (tmp_path / "python").write_text('#!/bin/sh\nfor word; do echo "<$word>"; done\n', "utf-8")
    (tmp_path / "python").chmod(0o755)
    step = ACTION["runs"]["steps"][0]
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PACKAGE": "hiwater == 0.1; echo x"}
    done = subprocess.run(["bash", "-e", "-c", step["run"]], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "<hiwater == 0.1; echo x>"
    assert step["if"] == "inputs.install != ''"


@needs_engine
def test_the_hook_runs_the_check(project: Path) -> None:
    assert (HOOK["language"], HOOK["pass_filenames"]) == ("system", False)
    command = ["bash", "-c", HOOK["entry"]]
    done = subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (project / "train.py").write_text(PROGRAM.format(2000), "utf-8")
    done = subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "at train.py:1 in <module>" in done.stdout.splitlines()[0]


def test_pre_commit_takes_the_file() -> None:
    clientlib = pytest.importorskip("pre_commit.clientlib")
    (hook,) = clientlib.load_manifest(str(ROOT / ".pre-commit-hooks.yaml"))
    assert hook["id"] == "hiwater-check"
