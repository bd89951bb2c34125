"""`--by task`: memory of asyncio programs by the coroutines of their tasks."""

from __future__ import annotations

import json
from pathlib import Path

from children import run_hiwater
from recording import needs_engine

pytestmark = needs_engine

PROGRAM = """\
import asyncio, threading

async def fetch(size):
    await asyncio.sleep(0.001)
    kept.append(deeper(size))

def deeper(size):
    return bytearray(size)

async def store():
    kept.append(bytearray(300_000))
    await inner()

async def inner():
    kept.append(bytearray(200_000))

async def main():
    await asyncio.gather(*(fetch(100_000) for _ in range(10)), store())

kept = [bytearray(700_000)]
asyncio.run(main())
other = threading.Thread(target=lambda: asyncio.run(store()))
other.start()
other.join()
"""


def test_each_stack_belongs_to_the_coroutine_of_its_task(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    run_hiwater("run", "-q", "-o", "a.hiw", "program.py", folder=tmp_path, check=True)

    done = run_hiwater("report", "a.hiw", "--by", "task", "--format", "json", folder=tmp_path, check=True)

    told = json.loads(done.stdout)
    groups = {group["function"]: group for group in told["groups"]}
    for name, least in {"fetch": 1_000_000, "store": 1_000_000, "[no task]": 700_000}.items():
        assert least <= groups[name]["self_bytes"] < least + 50_000 + 10_000_000 * (name == "[no task]"), name
        assert groups[name]["self_bytes"] == groups[name]["total_bytes"]
    assert sum(group["self_bytes"] for group in told["groups"]) == told["shown"]["bytes"]
    assert not {"inner", "deeper"} & groups.keys()


def test_a_program_without_tasks(tmp_path: Path) -> None:
    run_hiwater("run", "-q", "-o", "a.hiw", "-c", "kept = bytearray(1_000_000)", folder=tmp_path, check=True)
    done = run_hiwater("report", "a.hiw", "--by", "task", "--format", "json", folder=tmp_path, check=True)
    assert [group["function"] for group in json.loads(done.stdout)["groups"]] == ["[no task]"]
