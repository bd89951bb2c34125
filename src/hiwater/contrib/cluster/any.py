"""`hiwater.cluster("job.hiw")`: finds the cluster that this program uses, and records its workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from hiwater.errors import BadRequest


def cluster(
    path: str | os.PathLike[str], *, sample: int | str | None = None, limit: int | str | None = None
) -> AbstractContextManager[Any]:
    """Return a context manager that records all workers of the cluster that this program uses, into one file at `path`.

        with hiwater.cluster("job.hiw"):
            table.groupby("key").mean().compute()

    The cluster is that of the current Dask client, of the active Spark session, of Ray, if it is initialised, or the
    process group of torch.distributed. No engine is imported for this. `sample` and `limit`, in bytes, are as for the
    engine's own function: `hiwater.dask.profile()`, `hiwater.spark.profile()`, `hiwater.ray.profile()`,
    `hiwater.contrib.cluster.torch_distributed.profile()`.

    Raises BadRequest if there is no such cluster, if there are two, or if workers must be prepared before they start
    and were not; and what the engine's function raises.
    """
    found = {engine: current for engine, find in _FINDERS.items() if (current := find()) is not None}
    if not found:
        raise BadRequest(
            "this program uses no cluster yet: there is no current Dask client, no active Spark session, no process"
            " group of torch.distributed, and Ray is not initialised",
            "connect to the cluster first; start the ranks of a launcher as in `torchrun --no-python hiwater run -o"
            " 'job/%r.%p.hiw' train.py`",
        )
    if len(found) > 1:
        functions = " or ".join(f"{_PACKAGES.get(engine, 'hiwater.')}{engine}.profile()" for engine in found)
        raise BadRequest(f"this program uses several clusters: {', '.join(found)}", f"choose one with {functions}")
    ((engine, current),) = found.items()
    profile = import_module(f"hiwater.contrib.cluster.{engine}").profile
    chosen: AbstractContextManager[Any]
    if engine == "spark":
        if sample is not None or limit is not None:
            raise BadRequest(
                "Spark's workers have begun with the sample and the limit of hiwater.spark.conf()", "give them there"
            )
        chosen = profile(current, path)
    elif engine in ("ray", "torch_distributed"):
        chosen = profile(path, sample, limit)
    else:
        chosen = profile(current, path, sample, limit)
    return chosen


def _dask_client() -> Any:
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def _spark_context() -> Any:
    pyspark = sys.modules.get("pyspark")
    return getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)


def _ray() -> Any:
    ray = sys.modules.get("ray")
    return ray if ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized() else None


def _process_group() -> Any:
    torch = sys.modules.get("torch.distributed")
    return torch if torch is not None and torch.is_available() and torch.is_initialized() else None


_FINDERS: dict[str, Callable[[], Any]] = {
    "dask": _dask_client, "spark": _spark_context, "ray": _ray, "torch_distributed": _process_group,
}  # fmt: skip
# The packages of functions that have no module of their own below `hiwater`.
_PACKAGES = {"torch_distributed": "hiwater.contrib.cluster."}
