"""Spark: `conf()` has the Python workers of an application recorded, `profile()` and `collect()` merge their captures
into one file.

`spark_worker` is what runs in Spark's processes. Spark starts it as its daemon, so recording needs no change of the
program's functions.
"""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, Self, TypeVar

from hiwater.contrib.cluster import spark_worker, worker
from hiwater.contrib.cluster.job import JobCaptures
from hiwater.errors import BadRequest

OUR_DAEMON = "hiwater.spark.daemon"

_DAEMON_KEY = "spark.python.daemon.module"
_ENVIRONMENT = "spark.executorEnv."
_ROUNDS = 4  # of fetching: each may find machines that had no free slot before
_TASKS_FOR_EACH_SLOT = 2

Settings = TypeVar("Settings")


def conf(
    settings: Settings,
    folder: str | os.PathLike[str] | None = None,
    *,
    sample: int | str | None = None,
    limit: int | str | None = None,
    daemon: str | None = None,
) -> Settings:
    """Have all Python workers of a Spark application recorded, and return `settings`: a SparkSession.builder or a
    SparkConf. Call it before the session is made.

        spark = hiwater.spark.conf(SparkSession.builder, "/shared/captures").getOrCreate()

    Each worker writes its capture into a new folder in `folder`, on its own machine; best on a file system that all
    machines share. By default, `folder` is that for temporary files. `sample`, in bytes, is as for `hiwater.record()`:
    256 KiB by default, 0 records every block. `limit`, in bytes, is a ceiling for the address space of each worker.
    `daemon` is the daemon module of your own, which is run in place of Spark's; by default, the one that `settings`
    name. Raises BadSize.
    """
    put: Any = getattr(settings, "config", None) or getattr(settings, "set")  # noqa: B009 - of an object of Spark's
    chained = daemon or _daemon_of(settings)
    values = {
        spark_worker.FOLDER: os.path.join(
            os.path.abspath(folder or tempfile.gettempdir()), f"hiwater-spark-{os.urandom(6).hex()}"
        ),
        spark_worker.SAMPLE: str(worker.checked(sample, limit)),
        spark_worker.LIMIT: str(limit or ""),
        spark_worker.DAEMON: chained,
    }
    put(_DAEMON_KEY, OUR_DAEMON)
    for name, value in values.items():
        if value:
            put(f"{_ENVIRONMENT}{name}", value)
    return settings


def _daemon_of(settings: Any) -> str:
    """The daemon module that the settings name, if it is not ours."""
    known = settings._options if hasattr(settings, "_options") else settings
    name = known.get(_DAEMON_KEY) or ""
    if name == OUR_DAEMON:
        name = known.get(f"{_ENVIRONMENT}{spark_worker.DAEMON}") or ""
    return str(name)


class SparkProfile:
    """What `profile()` returns. `path` is that of the job's file."""

    def __init__(self, spark: Any, path: str | os.PathLike[str]) -> None:
        self._context = _context(spark)
        _folder(self._context)
        self._job = JobCaptures(path, engine="spark")
        self.path = self._job.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Collect. The program's own work is done: no failure here may become its."""
        try:
            _collect(self._context, self._job)
        except Exception as error:  # noqa: BLE001 - whatever Spark raises
            text = f"the captures of the Spark workers were not merged into {self.path!r}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def profile(spark: Any, path: str | os.PathLike[str]) -> SparkProfile:
    """Return a context manager that merges the captures of all Python workers of an application into one file at
    `path`, at its end.

        spark = hiwater.spark.conf(SparkSession.builder).getOrCreate()
        with hiwater.spark.profile(spark, "job.hiw"):
            spark.range(10**6).select(score("id")).write.parquet("scores")

    `spark` is a session or a SparkContext whose settings were made by `conf()`. A capture has all that its worker did
    since its start. Each task is a phase named after its stage. Raises BadRequest without these settings,
    CaptureUnwritable; a failure at the end is a RuntimeWarning.
    """
    return SparkProfile(spark, path)


def collect(spark: Any, path: str | os.PathLike[str]) -> Path:
    """Merge the captures of all Python workers of an application so far into one file at `path`, and return its
    absolute path.

    Captures that are not in the folder on this machine are fetched by tasks of Spark. Raises BadRequest if the settings
    were not made by `conf()`, NotRecording if there is no capture, CaptureUnwritable.
    """
    context = _context(spark)
    _folder(context)
    return _collect(context, JobCaptures(path, engine="spark"))


def _collect(context: Any, job: JobCaptures) -> Path:
    folder = _folder(context)
    with job:
        found = set()
        for file in sorted(Path(folder).glob("*.hiw")):
            job.add_file(file)
            found.add(file.name)
        if context._jsc is not None and not context.master.startswith("local"):
            try:
                fetch(context, folder, found, job)
            except Exception as error:  # noqa: BLE001 - what was found is worth a file
                job.lost("of other machines", "", f"Spark could not fetch captures: {str(error).splitlines()[:1]}")
        return job.write()


def fetch(context: Any, folder: str, found: set[str], job: JobCaptures) -> None:
    """Add the captures in `folder` on all machines with executors, except those already `found`. Raises what Spark
    raises."""
    slots = max(1, context.defaultParallelism) * _TASKS_FOR_EACH_SLOT
    everywhere = context.parallelize(range(slots), slots)
    before = context.getLocalProperty(spark_worker.COLLECTS)
    context.setLocalProperty(spark_worker.COLLECTS, "1")
    try:
        for _ in range(_ROUNDS):
            named = everywhere.mapPartitions(functools.partial(spark_worker.captures_here, folder)).collect()
            missing = frozenset(named) - found
            if not missing:
                return
            claim = f".fetched-{os.urandom(4).hex()}"
            fetched = everywhere.mapPartitions(functools.partial(spark_worker.fetch, folder, claim, missing))
            for name, host, pieces in fetched.toLocalIterator():
                job.add_pieces(pieces, name, host)
                found.add(name)
    finally:
        context.setLocalProperty(spark_worker.COLLECTS, before)
    for name in sorted(missing - found):
        job.lost(name, "", "no task of Spark's ran on its machine when captures were fetched")


def _context(spark: Any) -> Any:
    return getattr(spark, "sparkContext", spark)


def _folder(context: Any) -> str:
    settings = context.getConf()
    folder = settings.get(f"{_ENVIRONMENT}{spark_worker.FOLDER}")
    if not folder or settings.get(_DAEMON_KEY) != OUR_DAEMON:
        raise BadRequest(
            "the Python workers of this Spark application are not recorded",
            "make the session with hiwater.spark.conf(SparkSession.builder).getOrCreate(), before another session"
            " exists",
        )
    return str(folder)
