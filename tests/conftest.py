"""What every test finds: signals as in a terminal, and nothing of ours that is about to end by itself."""

import sys
import zlib
from collections import defaultdict

import hypothesis
import pytest

import faithful
from hiwater.meters.heap import COUNTING
from recording import SHARE

faithful.default_signals()
# On a busy machine an example takes as long as it takes.
hypothesis.settings.register_profile("hiwater", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("hiwater")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps one in HIWATER_TEST_SHARE of the tests of each grid. Each version of Python has a choice of its own."""
    grids = defaultdict(list)
    for item in items:
        if SHARE > 1 and item.get_closest_marker("grid"):
            grids[item.nodeid.partition("[")[0]].append(item)
    for name, cells in grids.items():
        cells.sort(key=lambda item: zlib.crc32(f"{sys.version_info[:2]} {item.nodeid}".encode()))
        grids[name] = cells[-(-len(cells) // SHARE) :]
    left_out = {item for cells in grids.values() for item in cells}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def nothing_lingers() -> None:
    """The engine counts for a second after the last scope, and then gives its tables back: some MiB that a test
    which looks at resident memory would miss in the middle of its work."""
    COUNTING.end()
