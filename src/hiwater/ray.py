"""Memory of the workers of a Ray cluster: `ray.init(runtime_env=hiwater.ray.env())`, at the end
`hiwater.ray.collect("job.hiw")`.

The names are looked up at first use: every worker imports this module when it starts, for `setup` alone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.contrib.cluster.ray import collect, env, own_figures, profile
    from hiwater.contrib.cluster.ray_worker import setup

__all__ = ["collect", "env", "own_figures", "profile", "setup"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(
        importlib.import_module(f"hiwater.contrib.cluster.ray{'_worker' * (name == 'setup')}"), name
    )
    globals()[name] = value
    return value
