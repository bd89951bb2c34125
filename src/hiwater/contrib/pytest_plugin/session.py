"""One run of pytest: measures the tests that ask for it, and fails those that exceed a limit."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from hiwater.contrib.pytest_plugin import limits
from hiwater.contrib.pytest_plugin.limits import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.contrib.pytest_plugin.evidence import Evidence
    from hiwater.contrib.pytest_plugin.measuring import Counting
    from hiwater.contrib.pytest_plugin.results import Results

SAMPLE_BYTES = 16 << 10
"""With --hiwater, blocks below it are sampled, unless something else is asked for."""
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
        sample = config.getoption("hiwater_sample")
        self._sample_bytes = limits.read_size(sample, "--hiwater-sample") if sample is not None else SAMPLE_BYTES
        from_settings = limits.of_lines(config.getini("hiwater_limits"))
        given = limits.of_lines(config.getoption("hiwater_limit"))
        self._default = Wanted(from_settings | given, rerun=bool(config.getini("hiwater_rerun")))
        option, setting = config.getoption("hiwater_baseline"), config.getini("hiwater_baseline")
        self.baseline = Path(option).absolute() if option else config.rootpath / setting if setting else None
        if config.getoption("hiwater_update") and self.baseline is None:
            raise pytest.UsageError("--hiwater-update needs a baseline; add --hiwater-baseline FILE")
        self.measures_all = self.records or bool(self._default.limits) or self.baseline is not None
        self.folder = Path(config.getoption("hiwater_captures") or config.rootpath / "hiwater-captures").absolute()
        self._counting: Counting | None = None
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
        if self.records and any(item.stash.get(WANTED, self._default).leaks is not None for item in items):
            if self._config.getoption("hiwater_sample") is not None and self._sample_bytes:
                raise pytest.UsageError(
                    "a limit of leaks needs every block; leave out --hiwater-sample, or deselect the test"
                )
            self._sample_bytes = 0

    # Around the run

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Phase:
        """With --hiwater, record from the first test to the last: in the workers of xdist, and not in their controller."""
        if not self.records or self._config.pluginmanager.hasplugin("dsession"):
            return (yield)
        evidence = self._get_evidence()
        evidence.begin_recording(self._sample_bytes)
        try:
            return (yield)
        finally:
            if self._counting is not None:
                self._counting.end()
            evidence.end_recording()

    def _get_evidence(self) -> Evidence:
        if self._evidence is None:
            from hiwater.contrib.pytest_plugin.evidence import Evidence

            worker = getattr(self._config, "workerinput", {}).get("workerid", "")
            self._evidence = Evidence(self.folder, worker)
        return self._evidence

    # Around a test. The innermost wrappers: what pytest and its plugins do around them is not measured.

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Phase:
        """Count what fixtures allocate and keep."""
        if WANTED not in item.stash:
            return (yield)
        if self._counting is None:
            from hiwater.contrib.pytest_plugin.measuring import Counting

            self._counting = Counting()
        self._counting.begin()
        item.stash[FIGURES] = {}
        return (yield from self._count(item, "setup", self._counting))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Phase:
        """Count what the ends of fixtures allocate and free, and end counting if the next test is not measured."""
        if self._counting is None or FIGURES not in item.stash:
            return (yield)
        try:
            return (yield from self._count(item, "teardown", self._counting))
        finally:
            if nextitem is None or WANTED not in nextitem.stash:
                self._counting.end()

    @staticmethod
    def _count(item: pytest.Item, phase: str, counting: Counting) -> Phase:
        allocated, live = counting.totals()
        try:
            return (yield)
        finally:
            now = counting.totals()
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
        evidence = self._get_evidence() if wanted.leaks is not None or self.records else None
        measurement = measuring.Measurement(wanted, item.nodeid)
        if evidence is not None:
            evidence.begin_test(item, wanted)
        result = None
        try:
            measurement.begin()
            try:
                result = yield
            finally:
                item.stash[FIGURES]["call"] = measurement.end()
        except BaseException:
            if evidence is not None:
                evidence.abandon_test()
            raise
        if evidence is not None:
            evidence.end_test()
        self._judge(item, wanted)
        return result

    def _judge(self, item: pytest.Item, wanted: Wanted) -> None:
        from hiwater.contrib.pytest_plugin import measuring

        figures = item.stash[FIGURES]["call"]
        found = measuring.excesses(figures, wanted)
        moment = (
            "end"
            if found and measuring.excesses(figures, Wanted({"kept": wanted.limits.get("kept", 1 << 62)}))
            else "peak"
        )
        if self._results is not None:
            found += self._results.excesses(item.nodeid, figures)
        if wanted.leaks is not None:
            found += self._get_evidence().leaks(item, wanted)
            moment = "end" if found else moment
        if found:
            pytest.fail("\n".join([*found, *self._get_evidence().of(item, wanted, moment)]), pytrace=False)
        if self._evidence is not None:
            self._evidence.discard()

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
        """Write the baseline."""
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
