#!/usr/bin/env python3
"""Run every command that README.md shows, and its program, with the hiwater of this interpreter, in a folder that has
what they name: for an installation on any system (`make release-check`). Needs pandas, pytest and gunicorn.

    python tools/readme_commands.py README.md examples/etl.py

A command that README has and that nobody thought of here runs as it stands, so it fails if it needs something.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS = 300
# What the commands name. The servers end after a while.
FILES = {
    "train.py": """\
try:
    profile
except NameError:  # it is there under `hiwater lines`
    def profile(function): return function
@profile
def train():
    return [bytearray(1000) for _ in range(10_000)]
if __name__ == "__main__":
    held = train()
""",
    "server.py": """\
import time
held = [bytearray(1000) for _ in range(10_000)]
time.sleep(float(open("seconds").read()))
""",
    "seconds": "3",
    "app.py": """\
import os, threading
def app(environ, start_response):
    start_response("200 OK", [])
    return [b"ok"]
threading.Timer(3, os.kill, (os.getppid(), 15)).start()
""",
    "tests/test_one.py": "def test_one():\n    assert bytearray(10**6)\n",
    "bin/make": "#!/bin/sh\nsleep 1\n",
}
# Captures that the commands read, each of train.py.
CAPTURES = ("run.4711.hiw", "before.hiw", "after.hiw", "train.hiw", "yesterday.hiw")
PREPARED = "def load():\n    return bytearray(10**7)\n"
SERVED = "4711"  # the process that README's commands look at
# Commands that need more than an installation, each with what tells that it is missing; and what is for a checkout.
LACKING = {"hiwater estimate": "torch"}
OF_A_CHECKOUT = ("make demo", "make test", "pip install .")


def environment(folder: Path) -> dict[str, str]:
    here = Path(sys.executable).parent
    return os.environ | {"PATH": f"{here}:{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder)}


def prepare(folder: Path, etl: Path) -> None:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    (folder / "bin/make").chmod(0o755)
    shutil.copy2(etl, folder / "etl.py")
    run(folder, f"hiwater run -q -o {CAPTURES[0]} train.py")
    for name in CAPTURES[1:]:
        shutil.copy2(folder / CAPTURES[0], folder / name)
    run(folder, "hiwater check train.hiw --baseline memory.json --update")


def run(folder: Path, command: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=folder, env=environment(folder), stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, "does not end"
    return done.returncode, done.stdout


def with_a_server(folder: Path, command: str) -> tuple[int, str]:
    """Run a command that looks at a recorded process."""
    (folder / "seconds").write_text("60")
    words = [sys.executable, "-m", "hiwater", "run", "-q", "-o", "served.hiw", "server.py"]
    server = subprocess.Popen(words, cwd=folder, env=environment(folder))
    try:
        for _ in range(100):  # its capture is there soon after it starts
            if (folder / "served.hiw").exists():
                break
            time.sleep(0.1)
        time.sleep(1)
        return run(folder, command.replace(SERVED, str(server.pid)))
    finally:
        server.kill()
        server.wait()
        (folder / "seconds").write_text(FILES["seconds"])


def is_right(folder: Path, command: str) -> tuple[bool, str]:
    """Whether a command does what README says, and what it said."""
    looks_at_a_process = re.search(rf"\b{SERVED}\b(?!\.)", command)
    code, said = (with_a_server if looks_at_a_process else run)(folder, command)
    lacking = next((word for start, word in LACKING.items() if command.startswith(start)), None)
    return (code == 0, said) if lacking is None else (code != 0 and lacking in said and "Traceback" not in said, said)


def commands(readme: str) -> list[str]:
    """Those of the blocks of commands, without the remarks behind them."""
    lines = re.findall(r"^\$ (.*)$", readme, re.MULTILINE)
    return [re.split(r"\s{2,}#|\s#\s", line)[0].strip() for line in lines]


def told(what: str, went_well: bool, said: str) -> bool:
    """Print whether something went well, and what it said otherwise."""
    print(f"{'ok' if went_well else 'FAILED'}  {what}", *([] if went_well else [said[-2000:]]), flush=True)
    return went_well


def main() -> int:
    readme = Path(sys.argv[1]).read_text("utf-8")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="hiwater-readme-") as name:
        folder = Path(name)
        prepare(folder, Path(sys.argv[2]))
        for command in commands(readme):
            if command not in OF_A_CHECKOUT:
                failed += not told(command, *is_right(folder, command))
        (program,) = re.findall(r"```python\n(import hiwater\n.*?)```", readme, re.DOTALL)
        (folder / "recorded.py").write_text(PREPARED + program)
        code, said = run(folder, "python recorded.py")
        failed += not told("the program", code == 0, said)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
