"""Memory of Spark's Python workers: `hiwater.spark.conf(SparkSession.builder)` and `with hiwater.spark.profile(spark,
"job.hiw"): ...`.

The names are looked up at first use: Spark's daemon, `hiwater.spark.daemon`, is loaded through this package, must load
nothing that starts a thread, and needs none of them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.contrib.cluster.spark import SparkProfile, collect, conf, profile

__all__ = ["SparkProfile", "collect", "conf", "profile"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hiwater.contrib.cluster import spark

    return getattr(spark, name)
