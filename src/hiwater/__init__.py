"""How much memory did this really use: when, where and why.

The names below are the whole public interface. Each is looked up at first use, so that `import hiwater` stays cheap
enough for a program that may never record anything. PYTEST_DONT_REWRITE: pytest would warn if hiwater was loaded before
it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater import contrib, errors
    from hiwater.capture import Capture, open, open_run
    from hiwater.contrib.cluster.any import cluster
    from hiwater.errors import HiwaterError
    from hiwater.lines.decorator import profile
    from hiwater.meters.devices.reconcile import now as device_breakdown
    from hiwater.meters.residency import breakdown
    from hiwater.recording.holders import holders
    from hiwater.recording.phases import mark, phase  # retired word: a public name, as a verb
    from hiwater.recording.record import record, snapshot
    from hiwater.recording.recorder import Recorder
    from hiwater.scopes.tracker import track

__version__ = "1.0.0rc1"
__all__ = [
    "Capture",
    "HiwaterError",
    "Recorder",
    "__version__",
    "breakdown",
    "cluster",
    "contrib",
    "device_breakdown",
    "errors",
    "holders",
    "mark",  # retired word: a public name, as a verb
    "open",
    "open_run",
    "phase",
    "profile",
    "record",
    "snapshot",
    "track",
]

_MODULES = ("contrib", "errors")  # whose names are public below their own
_HOMES = {
    "Capture": "hiwater.capture",
    "HiwaterError": "hiwater.errors",
    "Recorder": "hiwater.recording.recorder",
    "breakdown": "hiwater.meters.residency",
    "cluster": "hiwater.contrib.cluster.any",
    "device_breakdown": "hiwater.meters.devices.reconcile:now",
    "holders": "hiwater.recording.holders",
    "load_ipython_extension": "hiwater.notebook",  # what `%load_ext hiwater` calls
    "mark": "hiwater.recording.phases",  # retired word: a public name, as a verb
    "open": "hiwater.capture",
    "open_run": "hiwater.capture",
    "phase": "hiwater.recording.phases",
    "profile": "hiwater.lines.decorator",
    "record": "hiwater.recording.record",
    "snapshot": "hiwater.recording.record",
    "track": "hiwater.scopes.tracker",
    "unload_ipython_extension": "hiwater.notebook",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        # Without importlib: a program that is started finds none loaded that python had not.
        __import__(f"{__name__}.{name}")
        return globals()[name]
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, its_name = home.partition(":")
    value: object = getattr(_hiwater_own_(home), its_name or name)
    globals()[name] = value
    return value


# The engine knows this function by its name: modules of ours that a recorded program is the first to use are not its
# memory.
def _hiwater_own_(module: str) -> object:
    import importlib

    return importlib.import_module(module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
