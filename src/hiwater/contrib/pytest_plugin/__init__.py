"""The pytest plugin: limits for the memory of tests, their figures, and a committed baseline.

pytest loads this module in every run in which hiwater is installed. So it imports nothing but pytest, and only tests
that ask for it are measured.
"""

from __future__ import annotations

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hiwater.contrib.pytest_plugin.measuring import Region

_MARKER = (
    "hiwater(peak=None, allocated=None, kept=None, resident=None, device=None, blocks=None, this_thread=False,"
    " warmups=0): limit the memory of the test; a limit is a size, a dict from the id of the parameters to a size, or a"
    " function of their dict"
)
_ALIASES = (
    (
        'limit_memory("24 MB", current_thread_only=False): limit the peak of the test; MB are MiB here, as in'
        " pytest-memray"
    ),
    (
        'limit_leaks("1 MB", filter_fn=None, warmups=0, current_thread_only=False): limit what each stack of the test'
        " leaves allocated"
    ),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options and settings of the plugin."""
    group = parser.getgroup("hiwater", "memory of tests (hiwater)")
    group.addoption(
        "--hiwater",
        action="store_true",
        help="measure every test, keep the recording of them all, and show the heaviest tests",
    )
    group.addoption(
        "--hiwater-limit", action="append", default=[], metavar="FIGURE=SIZE",
        help="limit for every test that has none of its own: peak, allocated, kept, resident, device or blocks; may be"
        " repeated",
    )  # fmt: skip
    group.addoption(
        "--hiwater-baseline", metavar="FILE", help="compare every test with this baseline; a test that needs more fails"
    )
    group.addoption(
        "--hiwater-update", action="store_true", help="write the figures of the tests that passed into the baseline"
    )
    group.addoption("--hiwater-tolerance", metavar="5%,64KiB", help="by how much a test may exceed its baseline")
    group.addoption("--hiwater-summary", type=int, metavar="N", help="show the N heaviest tests (default: 10; 0: none)")
    group.addoption(
        "--hiwater-captures", metavar="FOLDER", help="where captures go (default: hiwater-captures in the root folder)"
    )
    parser.addini(
        "hiwater_limits", "limits for every test that has none of its own, a line each: peak = 200 MiB", "linelist"
    )
    parser.addini("hiwater_baseline", "the baseline that every test is compared with", default="")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; those of pytest-memray only where it is not active itself."""
    config.addinivalue_line("markers", _MARKER)
    has_memray = config.pluginmanager.hasplugin("memray")
    memray = has_memray and (config.getoption("memray") or config.getini("memray"))
    if not has_memray:
        for line in _ALIASES:
            config.addinivalue_line("markers", line)
    from hiwater.contrib.pytest_plugin.session import Session

    config.pluginmanager.register(Session(config, has_aliases=not memray), "hiwater-session")


@pytest.fixture
def hiwater_memory(request: pytest.FixtureRequest) -> Iterator[Callable[..., Region]]:
    """Measures blocks of a test.

        with hiwater_memory(peak="10 MB") as memory:
            load()
        assert memory.kept_bytes < 10_000

    The limits are those of the marker. The test fails at the end of a block that exceeds one of them.
    """
    from functools import partial

    from hiwater.contrib.pytest_plugin.measuring import Region

    session = request.config.pluginmanager.getplugin("hiwater-session")
    with session.recording_for(request.node) as evidence:
        yield partial(Region, evidence, request.node)
