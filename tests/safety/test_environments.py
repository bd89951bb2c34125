"""What the start-up file obeys: never the environment of another user, and nothing in a privileged or isolated
interpreter."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from children import hiwater_command, run_command, run_hiwater, run_python
from hiwater._os import process_identity, trust
from hiwater._os.ownership import OwnCode
from other_user import UID, as_other_user, needs_other_users, run_as_other_user, shared_folder
from recording import child_environment, needs_engine

pytestmark = needs_engine

WRAPPER = """
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char** given) {{
    (void)count;
    {become}
    given[0] = "{python}";
    return execv(given[0], given);
}}
"""
WHOLE = "if (setgid(0) || setuid(0)) return 9;"
FORKS = "int status = 0; if (fork()) return wait(&status) < 0 || status != 0;"
BECOMES = {"effective": "", "whole": WHOLE, "of another process": f"{WHOLE} {FORKS}"}


def entry(folder: Path, *, mode: int = 0o666) -> dict[str, str]:
    words = os.fsencode(folder / "words").hex()
    own = OwnCode.of_this_process(()).as_text().encode().hex()
    this = process_identity.this_process()
    run = f"by={this};first={this};space={process_identity.number_space()}"
    options = f"{run};sample=0;seed=1;history=0;native=0;every=0;mode={mode};words={words};own={own};limit=0;argv=1"
    fields = f"{options};lines=;run=x;folder={folder / 'run.hiw.d'}"
    return {"HIWATER_RUN": fields}


def started_by_other_user(
    folder: Path, environment: dict[str, str], *command: str | Path
) -> subprocess.CompletedProcess[str]:
    """A shell of the other user's starts the command, as a person would."""
    return run_command(
        as_other_user("sh", "-c", '"$0" "$@"; exit $?', *command), folder=folder, env=child_environment(environment)
    )


def made_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@needs_other_users
@pytest.mark.parametrize("become", BECOMES)
@pytest.mark.parametrize("options", [(), ("-I",)], ids=["plain", "isolated"])
def test_a_helper_with_roots_rights_records_nothing(become: str, options: tuple[str, ...], tmp_path: Path) -> None:
    if become == "of another process" and not options:
        pytest.skip("whose environment it obeys in all, PYTHONPATH included")
    source, helper, theirs = tmp_path / "helper.c", tmp_path / "helper", tmp_path / "theirs"
    source.write_text(WRAPPER.format(become=BECOMES[become], python=sys.executable))
    subprocess.run(["cc", source, "-o", helper], check=True)
    helper.chmod(0o4755)
    theirs.mkdir()
    theirs.chmod(0o777)
    for environment in (entry(theirs), {"HIWATER": "standby"}):
        code = "import os; print(os.geteuid(), [name for name in os.listdir('/dev/shm') if f'-{os.getpid()}-' in name])"
        done = started_by_other_user(theirs, environment, helper, *options, "-c", code)
        assert (done.returncode, done.stdout, done.stderr) == (0, "0 []\n", "")
    assert made_in(theirs) == []


@needs_other_users
@pytest.mark.parametrize("is_privileged", [True, False])
def test_an_interpreter_whose_file_has_capabilities_records_nothing(is_privileged: bool, tmp_path: Path) -> None:
    """The kernel says so of it (AT_SECURE)."""
    subprocess.run([sys.executable, "-m", "venv", "--copies", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python3"
    ours, copied = (
        subprocess.check_output(
            [one, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
        for one in (sys.executable, python)
    )
    for file in (*Path(ours).glob("*hiwater*.p*"), *Path(ours).glob("_hiwater*")):
        (Path(copied) / file.name).write_bytes(file.read_bytes())
    (Path(copied) / "0_ours.pth").write_text(ours)  # before those that start hiwater
    rights = ["setcap", "cap_dac_read_search+ep", str(python)]
    if is_privileged and (
        shutil.which("setcap") is None or subprocess.run(rights, check=False, capture_output=True).returncode
    ):
        pytest.skip("needs setcap, and a file system that keeps capabilities")
    with shared_folder() as folder:
        os.chown(folder, UID, UID)
        folder.chmod(0o700)
        done = started_by_other_user(folder, entry(folder), python, "-c", "import hiwater; print(7)")
        assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
        assert bool(made_in(folder)) is not is_privileged


@pytest.mark.parametrize("option", ["-I", "-E"])
def test_an_interpreter_that_ignores_its_environment_records_nothing(option: str, tmp_path: Path) -> None:
    done = run_python(option, "-c", "print(7)", env=child_environment(entry(tmp_path)), check=True)
    assert (done.stdout, made_in(tmp_path)) == ("7\n", [])


def test_a_child_of_this_user_is_recorded_and_nobody_else_may_read_more_than_a_group(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=child_environment(entry(tmp_path)))
    (capture,) = (tmp_path / "run.hiw.d").glob("*.hiw")
    assert stat.S_IMODE(capture.stat().st_mode) == 0o640


@needs_other_users
@pytest.mark.parametrize("how", ["theirs", "writable", "link"])
def test_captures_of_children_go_into_no_folder_of_somebody_elses(how: str, tmp_path: Path) -> None:
    folder = tmp_path / "run.hiw.d"
    (tmp_path / "elsewhere").mkdir()
    if how == "link":
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        os.chown(folder, 65534 if how == "theirs" else 0, 0)
        folder.chmod(0o777 if how == "writable" else 0o755)
    before = made_in(tmp_path)
    done = run_python("-c", "print(7)", env=child_environment(entry(tmp_path)), check=True)
    assert (done.stdout, done.stderr, made_in(tmp_path)) == ("7\n", "", before)


@pytest.mark.parametrize(("asked", "given"), [(0o666, 0o640), (0o000, 0o600), (0o640, 0o640), (0o4777, 0o640)])
def test_the_mode_of_files_is_bounded(asked: int, given: int) -> None:
    assert trust.mode_of(str(asked)) == given


@pytest.mark.parametrize("option", ["-I", "-E"])
def test_an_interpreter_that_ignores_its_environment_takes_no_setting_from_it(option: str, tmp_path: Path) -> None:
    words = [sys.executable, option, "-m", "hiwater", "run", "-o", "ours.hiw", "-c", "pass"]
    environment = child_environment({"HIWATER_FORMAT": "html", "HIWATER_MODE": "640"})
    subprocess.run(words, cwd=tmp_path, capture_output=True, check=True, env=environment)
    assert made_in(tmp_path) == ["ours.hiw"]
    assert stat.S_IMODE((tmp_path / "ours.hiw").stat().st_mode) == 0o600


PROJECT = '[tool.hiwater]\nformat = "html"\n'


@needs_other_users
@pytest.mark.parametrize(
    ("owners", "is_used"),
    [
        ({"pyproject.toml": 65534}, False),
        ({"pyproject.toml": 0}, True),
        ({"pyproject.toml": 65534, "here": 65534}, True),  # a project that is mounted into a container
        ({"pyproject.toml": 65534, "here": 65533}, False),
    ],
)
def test_settings_are_read_of_no_other_users_file(owners: dict[str, int], is_used: bool, tmp_path: Path) -> None:
    """Those of `hiwater check` name programs to run, and anybody may put a file into /tmp."""
    (tmp_path / "here").mkdir()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    for name, owner in owners.items():
        os.chown(tmp_path / name, owner, owner)
    run_hiwater("run", "-q", "-o", "a.hiw", "-c", "pass", folder=tmp_path / "here", check=True)
    assert (tmp_path / "here" / "a.html").exists() == is_used


@needs_other_users
def test_a_link_of_another_user_leads_to_no_settings(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere.toml").write_text(PROJECT)
    (tmp_path / "pyproject.toml").symlink_to("elsewhere.toml")
    for owner, is_used in ((65534, False), (0, True)):
        os.lchown(tmp_path / "pyproject.toml", owner, owner)
        run_hiwater("run", "-q", "-o", "a.hiw", "-c", "pass", folder=tmp_path / "here", check=True)
        assert (tmp_path / "here" / "a.html").exists() == is_used


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)], ids=["FIFO", "folder", "device"]
)
def test_settings_are_read_of_files_alone(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "pyproject.toml")
    done = run_hiwater("run", "-q", "-o", "a.hiw", "-c", "print(7)", folder=tmp_path, check=True)
    assert (done.stdout, done.stderr) == ("7\n", "")


@needs_other_users
def test_a_command_that_can_have_no_process_of_its_own_runs_unwatched(tmp_path: Path) -> None:
    with shared_folder() as folder:
        words = ["prlimit", "--nproc=1", *hiwater_command("sample", "--", "sh", "-c", "echo ran; exit 7")]
        done = run_as_other_user(*words, folder=folder)
        assert (done.returncode, done.stdout) == (7, "ran\n")
        assert done.stderr.count("\n") == 1 and "the command runs without being sampled" in done.stderr
        done = run_as_other_user("prlimit", "--nproc=1", *hiwater_command("sample", "--", "no-such"), folder=folder)
        assert done.returncode == 127 and "Traceback" not in done.stderr
