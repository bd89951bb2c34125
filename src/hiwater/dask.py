"""Memory of the workers of a Dask cluster: `with hiwater.dask.profile(client, "job.hiw"): ...`."""

from hiwater.analysis.job import engine_memory as own_figures
from hiwater.contrib.cluster.dask import DaskProfile, collect, dask_setup, profile

__all__ = ["DaskProfile", "collect", "dask_setup", "own_figures", "profile"]
