"""Quick modules of CPython's regression suite have the same results plain and recorded; `make test-cpython` compares
all, on each interpreter."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest

import faithful
from places import ROOT
from recording import SHARE, needs_engine

sys.path.insert(0, str(ROOT / "tools"))
import test_cpython

pytestmark = [
    needs_engine,
    pytest.mark.skipif(
        importlib.util.find_spec("test") is None or importlib.util.find_spec("test.libregrtest") is None,
        reason="this interpreter has no package `test` (on Debian: libpython3-testsuite)",
    ),
]


# Of what one interpreter compares whole, each other one compares a part, and not all the same part.
STEP = SHARE
MODULES = test_cpython.modules("quick")[sys.version_info.minor % STEP :: STEP]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_the_same_results_recorded(name: str) -> None:
    if importlib.util.find_spec(f"test.{name}") is None:
        pytest.skip("this interpreter has parts of the package `test` (on Debian, libpython3-testsuite has the rest)")
    comparison = faithful.compare(test_cpython.suite(name), faithful.Place(sys.executable))

    assert comparison.wrong == []
    assert comparison.plain.exit_code == 0, comparison.plain.output
    assert len(comparison.plain.tests) > 2


def test_the_list_of_modules_names_each_once_and_twenty_as_quick() -> None:
    names = test_cpython.modules()

    assert len(names) == len(set(names)) >= 120
    assert len(test_cpython.modules("quick")) == 20


# A suite of two tests. The first fails where a word that only its recorded runs know is there; the second fails every
# other time.
TWO_TESTS = """
    import pathlib, sys
    turns = pathlib.Path({turns!r})
    turn = len(turns.read_text()) if turns.exists() else 0
    turns.write_text("x" * (turn + 1))
    first = "<failure/>" * ("hiwater" in sys.modules)
    second = "<failure/>" * (turn % 2)
    pathlib.Path(sys.argv[1]).write_text(
        f"<testsuites><testcase name='first'>{{first}}</testcase>"
        f"<testcase name='second'>{{second}}</testcase></testsuites>"
    )
"""


def test_a_difference_is_told_from_what_is_unsteady_by_itself(tmp_path: Path) -> None:
    program = textwrap.dedent(TWO_TESTS).format(turns=str(tmp_path / "turns"))
    suite = faithful.Suite("two tests", ("-c", program, "{junit}"))

    comparison = faithful.compare(suite, faithful.Place(sys.executable), ["exact"])

    assert comparison.wrong == ["exact: first: ok plain, failure recorded (in 4 of 4 runs)"]
    assert comparison.unsteady == {"second"}


def test_a_run_that_lasts_too_long_is_ended_with_all_that_it_started() -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"

    outcome = faithful.run_suite(
        faithful.Suite("endless", ("-c", program), seconds=2), faithful.Place(sys.executable), None
    )

    assert outcome.exit_code == faithful.TIMED_OUT


def test_a_suite_whose_tests_do_not_run_is_no_suite_that_has_the_same_results() -> None:
    suite = faithful.Suite("broken", ("-c", "raise SystemExit(2)"), endings=(0, 1))

    comparison = faithful.compare(suite, faithful.Place(sys.executable), ["exact"])

    assert [line.split(":")[0] for line in comparison.wrong] == ["plain"]
