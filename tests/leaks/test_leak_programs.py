"""Twenty programs, of which half leak in the ways of known issues and half only look like it: none is missed, none
is flagged, and the line that is named is the one that a person would change. `make test-leaks` runs each with 20
seeds."""

import json
import os
import re
from pathlib import Path

import pytest

import compiled
from children import run_hiwater
from recording import needs_engine

pytestmark = needs_engine
PROGRAMS = Path(__file__).with_name("programs")
HOLDERS = {
    "asyncio_tasks": r"set `_TASKS` of module `leaks_asyncio_tasks`",
    "c_extension": r"no object that was found .*",
    "cache": r"dict `_CACHE` of module `leaks_cache`",
    "class_registry": (
        r"dict `\.registry` of type `Base` of module `leaks_class_registry`|.*type `Base` of module "
        r"`leaks_class_registry`"
    ),
    "closure": r"list `_LATER` of module `leaks_closure`",
    "del_cycle": r"list `_REVIVED` of module `leaks_del_cycle`",
    "listener": r"list `\.listeners` of leaks_listener\.Signal `CHANGED` of module `leaks_listener`",
    "logging_handlers": r"list `\.handlers` of logging\.Logger `_LOG` of module `leaks_logging_handlers`",
    "thread_locals": r".*`_LOCAL` of module `leaks_thread_locals`|.*a thread keeps for itself",
    "traceback": r"list `_FAILURES` of module `leaks_traceback`",
}
"""What a person would change to end each leak."""
SEEDS = int(os.environ.get("HIWATER_LEAK_SEEDS", "1"))


def lines_at_fault(program: Path) -> list[tuple[str, int]]:
    """Where there are two, a person may change either, and it depends on the seed which of them leaks more."""
    lines = enumerate(program.read_text().splitlines(), 1)
    return [(program.name, number) for number, line in lines if line.endswith("# leak")]


@pytest.mark.grid
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*_*.py")))
def test_leaks_are_found_and_nothing_else(name: str, seed: int) -> None:
    program = PROGRAMS / f"{name}.py"
    environment = {"HIWATER_LEAK_SEED": str(seed), "PYTHONPATH": str(compiled.library("forgetful").parent)}
    done = run_hiwater("leaks", "--repeat", 30, f"{program}:call", "--format", "json", environment=environment)
    result = json.loads(done.stdout)
    rows = [(Path(leak["file"]).name, leak["line"]) for leak in result["leaks"]]
    if name.startswith("clean"):
        assert (result["verdict"], rows, done.returncode) == ("no leak", [], 0), done.stdout
    else:
        assert rows[0] in lines_at_fault(program), done.stdout
        held_by = result["leaks"][0]["held_by"]
        assert re.fullmatch(HOLDERS[name.removeprefix("leaks_")], held_by), held_by
        assert {file for file, _ in rows} == {program.name}
        assert done.returncode == 1


def test_twenty_programs_are_tested() -> None:
    kinds = [path.stem.partition("_")[0] for path in PROGRAMS.glob("*_*.py")]
    assert (kinds.count("leaks"), kinds.count("clean")) == (10, 10)
