"""Fil's names: `fil-profile`, `python -m filprofiler`, `filprofiler.api` and `%%filprofile`, as its manual and its
README promise them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hiwater
from children import run_command
from drop_ins import HIWATER, run, script
from hiwater.contrib.compat.drop_ins import folder
from recording import needs_engine

pytestmark = needs_engine
PEAK = {"index.html", "peak-memory.svg", "peak-memory-reversed.svg", "peak-memory.prof"}
OOM = {"out-of-memory.svg", "out-of-memory-reversed.svg", "out-of-memory.prof"}
PROGRAM = (
    "import sys\ndef load():\n    return [0] * 2_000_000\nheld = load()\n"
    "print(sys.argv, sys.orig_argv[1:], __name__)\nsys.exit(4)\n"
)


def environment(**more: str) -> dict[str, str]:
    """What a user has who put the drop-in folder and its bin first; `python3` there is the interpreter of this test."""
    places = os.pathsep.join([str(Path(folder()) / "bin"), os.path.dirname(sys.executable), os.environ["PATH"]])
    return {**os.environ, "PATH": places, "PYTHONPATH": os.pathsep.join([folder(), HIWATER]), **more}


def fil(*words: str, cwd: Path, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    done = run_command(["fil-profile", *words], folder=cwd, env=environment(**more))
    assert done.returncode == code, done.stderr
    return done


def only_folder(root: Path) -> Path:
    (made,) = root.iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d_\d{3}", made.name)
    return made


def test_a_script_runs_as_by_itself_and_leaves_fils_files(tmp_path: Path) -> None:
    script(tmp_path / "yourscript.py", PROGRAM)
    done = fil("--no-browser", "run", "yourscript.py", "--input-file=yourfile", "-o", "x", cwd=tmp_path, code=4)
    words = ["yourscript.py", "--input-file=yourfile", "-o", "x"]
    assert done.stdout == f"{words} {words} __main__\n"
    made = only_folder(tmp_path / "fil-result")
    assert {path.name for path in made.iterdir()} == PEAK | {"capture.hiw"}
    rows = dict(line.rsplit(" ", 1) for line in (made / "peak-memory.prof").read_text().splitlines())
    (load,) = (name for name in rows if name.endswith("yourscript.py:3)"))
    assert abs(int(rows[load]) - 16_000_000) < 100 and "load" in load
    shown = re.findall(r"^=fil-profile= Wrote .* to (\S+)$", done.stderr, re.MULTILINE)
    assert {(tmp_path / path).resolve() for path in shown} == {
        made / name for name in PEAK if name != "peak-memory.prof"
    }


def test_the_module_does_the_same(tmp_path: Path) -> None:
    script(tmp_path / "yourscript.py", PROGRAM)
    done = run(
        "-m", "filprofiler", "--no-browser", "-o", "100%/there", "run", "yourscript.py", cwd=tmp_path, check=False
    )
    assert done.returncode == 4 and done.stdout == "['yourscript.py'] ['yourscript.py'] __main__\n"
    assert {path.name for path in only_folder(tmp_path / "100%" / "there").iterdir()} > PEAK


def test_a_module_is_run(tmp_path: Path) -> None:
    script(tmp_path / "yourmodule.py", "import sys; print(sys.argv[1:], __name__)")
    assert fil("--no-browser", "run", "-m", "yourmodule", "a", cwd=tmp_path).stdout == "['a'] __main__\n"


def test_memory_that_runs_out_leaves_what_was_live_then(tmp_path: Path) -> None:
    script(tmp_path / "oom.py", "held = [0] * 3_000_000\ndef ask():\n    return bytearray(1 << 43)\nask()\n")
    words = 'ulimit -Sv 6300000; exec fil-profile --no-browser run "$@"'
    done = run_command(["sh", "-c", words, "-", "oom.py"], folder=tmp_path, env=environment())
    assert done.returncode == 1 and "MemoryError" in done.stderr
    made = only_folder(tmp_path / "fil-result")
    assert {path.name for path in made.iterdir()} == PEAK | OOM | {"capture.hiw"}
    assert (
        f"=fil-profile= Wrote memory usage flamegraph to {made.relative_to(tmp_path)}/out-of-memory.svg" in done.stderr
    )
    assert re.search(r"oom.py:1\) 240000\d\d$", (made / "out-of-memory.prof").read_text(), re.MULTILINE)


def test_a_signal_writes_the_peak_so_far(tmp_path: Path) -> None:
    # Python runs the handler of a signal that comes right before a system call only when the call returns: no call is
    # to last.
    script(
        tmp_path / "long.py",
        "import select, sys\nheld = [0] * 1_000_000\nprint('ready', flush=True)\n"
        "while not select.select([sys.stdin], [], [], 0.1)[0]: pass\nprint('ended')\n",
    )
    with subprocess.Popen(
        ["fil-profile", "--no-browser", "run", "long.py"], cwd=tmp_path, env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        assert running.stdout and running.stderr
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGUSR2)
        said = ""
        while "index.html" not in said:  # all are written
            said = running.stderr.readline()
            assert said
        rest, _ = running.communicate("\n", timeout=300)
    assert rest == "ended\n" and running.returncode == 0
    folders = list((tmp_path / "fil-result").iterdir())
    assert len(folders) == 2 and all({path.name for path in made.iterdir()} >= PEAK for made in folders)


def test_the_other_commands_and_options(tmp_path: Path) -> None:
    assert fil(cwd=tmp_path).stdout.startswith("usage: fil-profile")
    assert fil("--help", cwd=tmp_path).stdout.startswith("usage: fil-profile")
    assert fil("--version", cwd=tmp_path).stdout == f"{hiwater.__version__}\n"
    assert "Apache" in fil("--license", cwd=tmp_path).stdout
    assert fil("python", "-c", "print(6 * 7)", cwd=tmp_path).stdout == "42\n"
    for words in (["run"], ["sing"], ["--loud", "run", "x.py"], ["run", "--help"]):
        assert "=fil-profile= " in fil(*words, cwd=tmp_path, code=2).stderr
    assert "no file 'none.py'" in fil("--disable-oom-detection", "run", "none.py", cwd=tmp_path, code=127).stderr
    assert list(tmp_path.iterdir()) == [], "what never ran leaves nothing"
    script(tmp_path / "x.py", "print(1)")
    fil("--no-browser", "-o", "out", "run", "x.py", cwd=tmp_path, FIL_NO_REPORT="1")
    assert [path.name for path in only_folder(tmp_path / "out").iterdir()] == ["capture.hiw"]


def test_the_report_is_opened_in_a_browser_unless_asked_not_to(tmp_path: Path) -> None:
    browser = script(tmp_path / "browser", '#!/bin/sh\necho "$1" >> "$OPENED"\n')
    browser.chmod(0o755)
    script(tmp_path / "x.py", "print(1)")
    opened = tmp_path / "opened"
    more = {"BROWSER": f"{browser} %s", "OPENED": str(opened)}
    fil("--no-browser", "run", "x.py", cwd=tmp_path, **more)
    assert not opened.exists()
    fil("-o", "out", "run", "x.py", cwd=tmp_path, **more)
    assert opened.read_text().strip() == f"file://{only_folder(tmp_path / 'out')}/index.html"


@pytest.mark.parametrize("start", [[sys.executable], ["fil-profile", "python"]])
def test_the_api_profiles_a_call(tmp_path: Path, start: list[str]) -> None:
    code = (
        "import sys\nfrom filprofiler.api import profile\nheld = []\n"
        "assert profile(lambda: held.append([0] * 1_000_000) or 'result', 'out/good') == 'result'\n"
        "try: profile(lambda: held.append([0] * 2_000_000) or 1 / 0, 'out/bad')\n"
        "except ZeroDivisionError: print('raised')\n"
        "print([name for name in ('numpy', 'rich') if name in sys.modules])\n"
    )
    done = run_command([*start, "-c", code], folder=tmp_path, env=environment(), check=True)
    assert done.stdout == "raised\n[]\n"
    for name, held in (("good", 8_000_000), ("bad", 16_000_000)):
        assert {path.name for path in (tmp_path / "out" / name).iterdir()} > PEAK
        sizes = [
            int(line.rsplit(" ", 1)[1])
            for line in (tmp_path / "out" / name / "peak-memory.prof").read_text().splitlines()
        ]
        assert abs(max(sizes) - held) < 1000


def test_the_extension_has_the_cell_magic_alone(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    code = (
        "from IPython.testing.globalipapp import get_ipython\nip = get_ipython()\n"
        "ip.run_line_magic('load_ext', 'filprofiler')\n"
        "ip.run_cell('%%filprofile\\nx = [0] * 3_000_000\\nprint(len(x))')\nassert len(ip.user_ns['x']) == 3_000_000\n"
        "found = ip.magics_manager.magics\n"
        "assert 'filprofile' in found['cell'] and 'memit' not in found['line'], found\n"
    )
    done = run("-W", "ignore", "-c", code, cwd=tmp_path, IPYTHONDIR=str(tmp_path))
    assert "3000000" in done.stdout and "22.9 MiB" in done.stdout


def test_the_commands_find_the_interpreter_that_hiwater_is_installed_for(tmp_path: Path) -> None:
    package = tmp_path / "a prefix" / "lib" / "python3.11" / "site-packages" / "hiwater"
    installed = package / "contrib" / "compat" / "dropin" / "bin"
    installed.mkdir(parents=True)
    for name in ("mprof", "fil-profile", "interpreter.sh"):
        source = Path(folder()) / "bin" / name
        (installed / name).write_bytes(source.read_bytes())
        (installed / name).chmod(0o755)
        assert name == "interpreter.sh" or os.access(source, os.X_OK)
    for place in (tmp_path / "a prefix" / "bin", tmp_path / "on path"):
        place.mkdir()
        script(place / "python3.11", f'#!/bin/sh\necho "{place.name}" "$@"\n').chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(installed / "mprof")
    path = f"{tmp_path / 'on path'}:/usr/bin:/bin"

    def said(*words: str | Path) -> str:
        return subprocess.run([*map(str, words)], env={"PATH": path}, capture_output=True, text=True, check=True).stdout

    assert said(installed / "mprof", "list", "a b") == f"bin {installed}/../mprof.py list a b\n"
    assert said(link) == f"bin {installed}/../mprof.py\n"
    assert said(installed / "fil-profile").startswith(f"bin {installed}/../filprofiler/__main__.py")
    (tmp_path / "a prefix" / "bin" / "python3.11").unlink()  # as `pip install --user` has it
    assert said(installed / "mprof") == f"on path {installed}/../mprof.py\n"
