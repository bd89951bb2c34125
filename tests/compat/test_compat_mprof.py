"""mprof's commands and its files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from children import run_command
from drop_ins import HIWATER, run, script
from hiwater.contrib.compat.drop_ins import folder
from hiwater.contrib.compat.memory_profiler import datfile, mprof
from waiting import wait_until

PROGRAM = "import time\n@profile\ndef f():\n    x = [0] * 5_000_000\n    time.sleep(.5)\n    return len(x)\nf()\n"


def test_run_a_script_and_read_what_it_left(tmp_path: Path) -> None:
    script(tmp_path / "p.py", PROGRAM)
    run("-m", "mprof", "run", "-T", "0.01", "p.py", cwd=tmp_path)
    (file,) = tmp_path.glob("mprofile_*.dat")
    said = datfile.read_mprofile_file(str(file))
    assert said["cmd_line"] == "p.py" and len(said["mem_usage"]) > 10
    ((start, end, before, after, level),) = said["func_timestamp"]["__main__.f"]
    assert end - start > 0.14 and level == 0 and before < after + 1
    during = datfile.filter_mprofile_mem_usage_by_function(said, "__main__.f")
    assert max(during) > before + 37
    assert f"{max(said['mem_usage']):.3f} MiB" in run("-m", "mprof", "peak", cwd=tmp_path).stdout
    assert run("-m", "mprof", "peak", "--func", "none", "0", cwd=tmp_path).stdout.endswith("nan MiB\n")
    assert "f" in run("-m", "mprof", "plot", cwd=tmp_path).stdout


def test_children_apart_and_the_exit_code(tmp_path: Path) -> None:
    words = ["-m", "mprof", "run", "-M", "-E", "-T", "0.01", "-o", "x.dat", "sh", "-c", "sleep 1 & wait; exit 6"]
    assert run(*words, cwd=tmp_path, check=False).returncode == 6
    said = datfile.read_mprofile_file(str(tmp_path / "x.dat"))
    assert len(said["children"]) == 1 and said["cmd_line"].startswith("sh -c")
    assert "Child" in run("-m", "mprof", "peak", "x.dat", cwd=tmp_path).stdout


@pytest.mark.parametrize(("program", "code"), [("exit 6", 6), ("exit 0", 0), ("kill -9 $$", 137)])
def test_the_action_itself_raises_the_exit_code_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["-T", "0.01", "-o", "x.dat", "sh", "-c", program]
    monkeypatch.setattr(sys, "argv", ["mprof", "run", "--exit-code", *words])
    for arguments in (None, ["--exit-code", *words], ["-E", *words]):
        with pytest.raises(SystemExit) as ended:
            mprof.run_action(arguments)
        assert ended.value.code == code
    said = capsys.readouterr().err
    assert said == f"mprof: the program ended with exit code {code}\n" * (3 if code else 0)
    assert mprof.run_action(words) == 0


def test_the_command(tmp_path: Path) -> None:
    script(tmp_path / "p.py", PROGRAM)
    places = os.pathsep.join([f"{folder()}/bin", os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PATH": places, "PYTHONPATH": HIWATER}

    def command(*words: str) -> str:
        return run_command(["mprof", *words], folder=tmp_path, env=environment, check=True).stdout

    command("run", "-T", "0.01", "p.py")
    assert re.fullmatch(r"0 mprofile_\d{14}\.dat [\d:]{8} [\d/]{10}\n", command("list"))
    assert re.fullmatch(r"mprofile_\d{14}\.dat\t[\d.]+ MiB\n", command("peak"))


def test_a_plot_on_the_terminal_shows_children_and_functions(tmp_path: Path) -> None:
    lines = (
        "CMDLINE prog arg\nMEM 10.0 100.0\nMEM 30.0 101.0\nCHLD 7 5.0 100.5\n"
        "FUNC __main__.work 10.0 100.2 30.0 100.8 0\n"
    )
    script(tmp_path / "a.dat", lines)
    shown = run("-m", "mprof", "plot", "a.dat", cwd=tmp_path).stdout
    assert "prog arg" in shown and "30.0 MiB at 1.00 s" in shown and "child 7" in shown and "work" in shown
    shown = run("-m", "mprof", "plot", "-n", "-w", "0,0.2", "a.dat", cwd=tmp_path).stdout
    assert "work" not in shown and "30.0 MiB" not in shown
    refused = run("-m", "mprof", "plot", "-o", "x.bmp", "a.dat", cwd=tmp_path, check=False)
    assert refused.returncode == 2 and ".png, .svg or .pdf" in refused.stderr


def test_list_rm_and_clean(tmp_path: Path) -> None:
    for second in range(3):
        (tmp_path / f"mprofile_2020010100000{second}.dat").write_text(f"CMDLINE {second}\nMEM 1.0 {second}.0\n")
    (tmp_path / "mine.dat").write_text("MEM 1 1\n")
    listed = run("-m", "mprof", "list", cwd=tmp_path).stdout.splitlines()
    assert listed[0] == "0 mprofile_20200101000000.dat 00:00:00 01/01/2020" and len(listed) == 3
    run("-m", "mprof", "rm", "--dry-run", "0", cwd=tmp_path)
    assert len(list(tmp_path.glob("mprofile_*"))) == 3
    run("-m", "mprof", "rm", "-1", cwd=tmp_path, check=False)
    run("-m", "mprof", "clean", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.dat"]
    assert run("-m", "mprof", "peak", cwd=tmp_path, check=False).returncode == 2


def test_attach_ends_cleanly_with_its_target(tmp_path: Path) -> None:
    target = subprocess.Popen(["sleep", "600"])
    file = tmp_path / "x.dat"

    def end_once_measured() -> None:
        try:
            wait_until(lambda: file.exists() and "MEM" in file.read_text())
        finally:
            target.kill()
            target.wait()

    ending = threading.Thread(target=end_once_measured)
    ending.start()
    done = run("-m", "mprof", "attach", "-T", "0.01", "-o", file.name, str(target.pid), cwd=tmp_path)
    ending.join()
    assert f"process {target.pid} has ended" in done.stdout and done.stderr == ""


def test_two_runs_in_one_second_have_a_file_each(tmp_path: Path) -> None:
    for _ in range(3):
        run("-m", "mprof", "run", "-T", "0.01", "sleep", "0.02", cwd=tmp_path)
    assert len(list(tmp_path.glob("mprofile_*.dat"))) == 3


def test_a_drawing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    script(tmp_path / "p.py", PROGRAM)
    run("-m", "mprof", "run", "-C", "-T", "0.01", "-o", "x.dat", "p.py", cwd=tmp_path)
    run("-m", "mprof", "plot", "-s", "-w", "0,0.2", "-o", "x.png", "x.dat", cwd=tmp_path)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_broken_lines_and_old_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "old.dat"
    file.write_text(
        "MEM 2.0 12.0\n\nWHAT 1\nMEM 1.0 11.0\nFUNC a.f 1.0 11.0 2.0 12.0\nMEM 3.\nCHLD 5 1.5 11.0\nMEM 4.0"
    )
    said = datfile.read_mprofile_file(str(file))
    assert said["timestamp"] == [11.0, 12.0] and said["mem_usage"] == [1.0, 2.0]
    assert said["func_timestamp"] == {"a.f": [(11.0, 12.0, 1.0, 2.0, 0)]} and said["children"] == {5: [(1.5, 11.0)]}


def test_labels_are_as_short_as_they_can_be() -> None:
    assert datfile.function_labels(["a.b.f", "a.c.f", "a.g"]) == {"a.b.f": "b.f", "a.c.f": "c.f", "a.g": "g"}


@pytest.mark.parametrize(
    ("words", "code"), [(["nonsense"], 1), ([], 1), (["--help"], 0), (["run", "no-such"], 127), (["plot", "7"], 2)]
)
def test_usage(tmp_path: Path, words: list[str], code: int) -> None:
    done = run("-m", "mprof", *words, cwd=tmp_path, check=False)
    assert done.returncode == code and "Traceback" not in done.stderr


def test_an_interrupt_leaves_the_file(tmp_path: Path) -> None:
    from hiwater.contrib.compat.drop_ins import folder

    places = os.pathsep.join([folder(), str(Path(folder()).parent.parent)])
    words = [sys.executable, "-m", "mprof", "run", "-T", "0.01", "-o", "x.dat", "sleep", "60"]
    running = subprocess.Popen(
        words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": places}, start_new_session=True, stdout=subprocess.DEVNULL
    )
    file = tmp_path / "x.dat"
    wait_until(lambda: file.exists() and file.read_text().count("MEM") > 10)
    os.killpg(running.pid, signal.SIGINT)
    running.wait(timeout=300)
    assert len(datfile.read_mprofile_file(str(file))["mem_usage"]) > 10
