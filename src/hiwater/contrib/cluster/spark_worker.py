"""What runs in Spark's Python processes: in the daemon of each executor, which forks the workers, and in the workers.

Nothing here may fail a task, write to stdout (which is the daemon's channel to Spark), or start a thread before the
daemon forks.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from contextlib import suppress

from hiwater._os import native
from hiwater._os.native import unrecorded
from hiwater.contrib.cluster import worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

FOLDER, SAMPLE, LIMIT, DAEMON = (f"HIWATER_SPARK_{name}" for name in ("FOLDER", "SAMPLE", "LIMIT", "DAEMON"))
"""The settings, in the environment of the executors: as the arguments of `spark.conf()`."""
COLLECTS = "hiwater.collects"
"""The local property of the tasks that collect captures."""

_MOST_MARKERS = 500  # of a worker: tasks beyond have phases alone
_MOST_BYTES = 256 << 20  # of captures, compressed, in the result of one task

_daemon = 0
_task = 0
_markers = 0


def run_daemon() -> None:
    """Be the daemon: run Spark's, or the user's own (`HIWATER_SPARK_DAEMON`), and record the workers that it forks."""
    from pyspark import daemon

    try:
        arm()
        daemon.worker = functools.partial(_hiwater_launch_, daemon.worker)
    except Exception as error:  # noqa: BLE001 - whatever it is, the daemon must serve
        _tell(f"the workers are not recorded: {error or type(error).__name__}")
    own = os.environ.get(DAEMON, "")
    if own in ("", daemon.__name__):
        daemon.manager()
    else:
        import runpy

        runpy.run_module(own, run_name="__main__", alter_sys=True)


# The engine recognises this frame by its name: the frames below it, which are the daemon's, are in no stack.
def _hiwater_launch_(work: Callable[..., int], *arguments: Any) -> int:
    return work(*arguments)


def arm() -> None:
    """Have the children that this process forks recorded. Raises EngineUnavailable."""
    global _daemon  # noqa: PLW0603 - there is one in a process
    native.load()  # here, so that no worker has to
    _daemon = os.getpid()
    os.register_at_fork(after_in_child=_begin_in_worker)
    _watch_tasks()


def _begin_in_worker() -> None:
    if os.getppid() != _daemon:
        return  # a child of a worker
    folder = os.environ.get(FOLDER) or os.path.join(os.getcwd(), "hiwater")
    begun = worker.start(
        f"{folder.replace('%', '%%')}/%h.%p-{time.monotonic_ns() // 1_000_000}.hiw",
        engine="spark",
        worker=f"executor {_executor()}",
        sample=os.environ.get(SAMPLE) or worker.SAMPLE,
        limit=os.environ.get(LIMIT) or None,
    )
    if begun.why:
        _tell(f"worker {os.getpid()}: {begun.why}")


def _executor() -> str:
    """The executor's number: Kubernetes has it in the environment, a standalone cluster in the address of the
    executor's log."""
    known = os.environ.get("SPARK_EXECUTOR_ID", "")
    _, _, logged = os.environ.get("SPARK_LOG_URL_STDERR", "").partition("executorId=")
    return known or logged.partition("&")[0] or "driver"


def _tell(text: str) -> None:
    with suppress(OSError, ValueError):
        print(f"hiwater: {text}", file=sys.stderr)


# Tasks


def _watch_tasks() -> None:
    """Make each task a phase: from its first step after its context is known to the step that takes the context
    away."""
    from pyspark import worker_util
    from pyspark.taskcontext import TaskContext

    set_up = worker_util.setup_spark_files
    set_context: Any = TaskContext._setTaskContext.__func__

    def setup_spark_files(*args: Any, **kwargs: Any) -> Any:
        _quietly(_begin_task, TaskContext.get())
        return set_up(*args, **kwargs)

    def _set_task_context(cls: Any, context: Any) -> None:
        if context is None:
            _quietly(_end_task)
        set_context(cls, context)

    worker_util.setup_spark_files = setup_spark_files
    TaskContext._setTaskContext = classmethod(_set_task_context)


def _begin_task(context: Any) -> None:
    """Begin a phase for the stage. The partition and the attempt are in a marker: phases of one name are added up
    over tasks."""
    global _task, _markers  # noqa: PLW0603 - a worker has one task at a time
    _end_task()
    if context is None or context.getLocalProperty(COLLECTS):
        return
    stage = f"stage {context.stageId()}"
    if _markers < _MOST_MARKERS:
        _markers += 1
        native.load().add_marker(f"{stage}, partition {context.partitionId()}, attempt {context.attemptNumber()}")
    _task = worker.phase_begin(stage)


def _end_task() -> None:
    global _task
    ended, _task = _task, 0
    worker.phase_end(ended)


def _quietly(work: Callable[..., None], *arguments: object) -> None:
    with suppress(Exception):
        work(*arguments)


# Collection: these functions run as tasks


def captures_here(folder: str, _: Iterable[int]) -> Iterator[str]:
    """The names of the captures on this machine."""
    with suppress(OSError):
        yield from (name for name in os.listdir(folder) if name.endswith(".hiw"))


def fetch(folder: str, claim: str, missing: frozenset[str], _: Iterable[int]) -> Iterator[tuple[str, str, list[bytes]]]:
    """Name, host and pieces of each missing capture on this machine. The first task of a machine that makes the
    folder `claim` has its captures."""
    try:
        os.mkdir(os.path.join(folder, claim))
    except OSError:
        return
    fetched = 0
    for name in sorted(missing.intersection(captures_here(folder, ()))):
        pieces = unrecorded(_pieces, os.path.join(folder, name), None)
        fetched += sum(map(len, pieces))
        yield name, os.uname().nodename, pieces
        if fetched > _MOST_BYTES:
            break  # the others are fetched in another round


def _pieces(path: str, _: None) -> list[bytes]:
    return list(worker.pieces(path))
