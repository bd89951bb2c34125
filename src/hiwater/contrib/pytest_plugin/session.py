"""One run of pytest: measures the tests that ask for it, and fails those that exceed a limit."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hiwater.contrib.pytest_plugin import limits
from hiwater.contrib.pytest_plugin.limits import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.contrib.pytest_plugin.evidence import Evidence
    from hiwater.contrib.pytest_plugin.results import Results

Phase = Generator[None, object, object]
WANTED: pytest.StashKey[Wanted] = pytest.StashKey()
FIGURES: pytest.StashKey[dict[str, Any]] = pytest.StashKey()


class Session:
    """The hooks. What measures is imported at the first test that asks for it."""

    def __init__(self, config: pytest.Config, *, has_aliases: bool) -> None:
        """Read the settings. Raises UsageError."""
        self._config = config
        self._has_aliases = has_aliases
        self.is_worker = hasattr(config, "workerinput")
        self.records = bool(config.getoption("hiwater"))
        from_settings = limits.of_lines(config.getini("hiwater_limits"))
        given = limits.of_lines(config.getoption("hiwater_limit"))
        self._default = Wanted(from_settings | given)
        option, setting = config.getoption("hiwater_baseline"), config.getini("hiwater_baseline")
        self.baseline = Path(option).absolute() if option else config.rootpath / setting if setting else None
        if config.getoption("hiwater_update") and self.baseline is None:
            raise pytest.UsageError("--hiwater-update needs a baseline; add --hiwater-baseline FILE")
        self.measures_all = self.records or bool(self._default.limits) or self.baseline is not None
        self.folder = Path(config.getoption("hiwater_captures") or config.rootpath / "hiwater-captures").absolute()
        self._evidence: Evidence | None = None
        self._results: Results | None = None
        if self.baseline is not None:
            self._results = self._make_results()

    def _make_results(self) -> Results:
        from hiwater.contrib.pytest_plugin.results import Results

        return Results(
            self.baseline,
            updates=bool(self._config.getoption("hiwater_update")),
            tolerance=self._config.getoption("hiwater_tolerance"),
        )

    # Which tests

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Read the limits of every test, so that a mistake in one ends the run before the first test."""
        for item in items:
            wanted = limits.of_test(item, self._default, has_aliases=self._has_aliases)
            if wanted is None and self.measures_all:
                wanted = self._default
            if wanted is not None:
                item.stash[WANTED] = wanted

    # Around the run

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Phase:
        """With --hiwater, record from the first test to the last: in the workers of xdist, and not in their
        controller."""
        if not self.records or self._config.pluginmanager.hasplugin("dsession"):
            return (yield)
        evidence = self.get_evidence()
        evidence.begin_run()
        try:
            return (yield)
        finally:
            evidence.end()

    def get_evidence(self) -> Evidence:
        """The recording of this process."""
        if self._evidence is None:
            from hiwater.contrib.pytest_plugin.evidence import Evidence

            worker = getattr(self._config, "workerinput", {}).get("workerid", "")
            self._evidence = Evidence(self.folder, worker, keeps=self.records)
        return self._evidence

    @contextmanager
    def recording_for(self, item: pytest.Item) -> Iterator[Evidence]:
        """Record for the blocks of a test, which may itself not be measured."""
        evidence = self.get_evidence()
        evidence.begin_for_test()
        try:
            yield evidence
        finally:
            if WANTED not in item.stash:
                evidence.end_after_test()

    # Around a test. The innermost wrappers: what pytest and its plugins do around them is not measured.

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Phase:
        """Count what fixtures allocate and keep."""
        if WANTED not in item.stash:
            return (yield)
        evidence = self.get_evidence()
        evidence.begin_for_test()
        item.stash[FIGURES] = {}
        return (yield from self._count(item, "setup", evidence))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Phase:
        """Count what the ends of fixtures allocate and free, and end the recording if the next test is not measured."""
        if self._evidence is None or FIGURES not in item.stash:
            return (yield)
        try:
            return (yield from self._count(item, "teardown", self._evidence))
        finally:
            if nextitem is None or WANTED not in nextitem.stash:
                self._evidence.end_after_test()

    @staticmethod
    def _count(item: pytest.Item, phase: str, evidence: Evidence) -> Phase:
        allocated, live = evidence.totals()
        try:
            return (yield)
        finally:
            now = evidence.totals()
            item.stash[FIGURES][phase] = {"allocated": now[0] - allocated, "kept": now[1] - live}

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Phase:
        """Measure the test, and fail it if it passed and exceeds a limit."""
        wanted = item.stash.get(WANTED, None)
        if wanted is None or FIGURES not in item.stash:
            return (yield)
        from hiwater.contrib.pytest_plugin import measuring

        for _ in range(wanted.warmups):
            item.runtest()
        evidence = self.get_evidence()
        measurement = measuring.Measurement(wanted, item.nodeid)
        evidence.begin_test(item, wanted)
        try:
            measurement.begin()
            try:
                result = yield
            finally:
                item.stash[FIGURES]["call"] = measurement.end()
        finally:
            evidence.end_test()
        self._judge(item, wanted, evidence)
        return result

    def _judge(self, item: pytest.Item, wanted: Wanted, evidence: Evidence) -> None:
        from hiwater.contrib.pytest_plugin import measuring

        evidence.check()
        figures = item.stash[FIGURES]["call"]
        exceeded = measuring.excesses(figures, wanted)
        if self._results is not None:
            exceeded = self._results.excesses(item.nodeid, figures) | exceeded
        if wanted.leaks is not None and (leaks := evidence.leaks(item, wanted)):
            exceeded["leaks"] = leaks
        if exceeded:
            pytest.fail("\n".join([*exceeded.values(), *evidence.of_test(list(exceeded))]), pytrace=False)
        evidence.forget_test()

    # Results

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Put the figures into the report of the teardown, which xdist carries to the controller."""
        report = yield
        figures = item.stash.get(FIGURES, None)
        if figures is not None and call.when == "call" and report.passed:
            figures["passed"] = True
        if figures is not None and call.when == "teardown":
            report.hiwater_figures = figures
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gather the figures, here or from the workers."""
        figures = getattr(report, "hiwater_figures", None)
        if figures is None or self.is_worker or "call" not in figures:
            return
        if self._results is None:
            self._results = self._make_results()
        self._results.add(report.nodeid, figures)

    def pytest_sessionfinish(self) -> None:
        """Write the baseline, and end a recording that an interruption left."""
        if self._evidence is not None:
            self._evidence.end()
        if self._results is not None and not self.is_worker:
            self._results.write()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the heaviest tests if all tests were measured, or if it is asked for."""
        count = self._config.getoption("hiwater_summary")
        if self._results is None or count == 0 or (count is None and not self.measures_all):
            return
        terminalreporter.section("memory of the heaviest tests (hiwater)")
        for line in self._results.table(10 if count is None else count):
            terminalreporter.write_line(line)
        if self.records:
            terminalreporter.write_line(
                f"stacks of all tests: the captures session*.hiw in {self.folder}; see `hiwater report`"
            )
