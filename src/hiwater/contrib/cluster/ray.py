"""Ray: `env()` has every worker of a job record itself, `collect()` merges the captures of all nodes. `ray_worker`
is what runs in the workers."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hiwater.capture import Capture
from hiwater.contrib.cluster import ray_node, worker
from hiwater.contrib.cluster.job import JobCaptures
from hiwater.contrib.cluster.ray_worker import OFF, VARIABLE, Both
from hiwater.errors import HiwaterError, NotRecording

HOOK = "hiwater.ray.setup"
"""The setup hook of the workers, as `ray job submit --runtime-env-json` takes it, too."""

_FIELD = "worker_process_setup_hook"
_NODES_AT_ONCE = 8
_PIECES_AHEAD = 2  # of each node, in the object store
_REMEDY = "call ray.init(runtime_env=hiwater.ray.env())"


def env(
    runtime_env: Mapping[str, Any] | None = None, *, sample: int | str | None = None, limit: int | str | None = None
) -> dict[str, Any]:
    """Return a runtime environment for `ray.init()` in which every worker process records itself. `runtime_env` is your
    own; its setup hook, a callable or a path, is still called.

        ray.init(runtime_env=hiwater.ray.env({"env_vars": {"MODE": "test"}}))

    `sample`, in bytes, is as for `hiwater.record()`: 256 KiB by default, 0 records every block. `limit`, in bytes, is a
    ceiling for each worker's address space, Ray's object store included: beyond it a task gets MemoryError. Raises
    BadSize.
    """
    options = {"sample": worker.checked(sample, limit), "limit": limit}
    changed = dict(runtime_env or {})
    hook = changed.get(_FIELD)
    if isinstance(hook, Both) or not isinstance(hook, str | None):
        changed[_FIELD] = hook if isinstance(hook, Both) else Both(hook)
    else:
        changed[_FIELD] = HOOK
        if hook not in {None, HOOK}:
            options["hook"] = hook
    changed["env_vars"] = {**changed.get("env_vars", {}), VARIABLE: json.dumps(options)}
    return changed


def collect(path: str | os.PathLike[str]) -> Path:
    """Merge the captures of the job's workers on all nodes into one file at `path`, and return its path. The workers go
    on.

    One task on each node sends its captures; it takes no CPU of the cluster's. Captures of workers that have died are
    among them. A node that has left the cluster, and a worker that could not be recorded, are named in the report, with
    the reason.

    Raises CaptureUnwritable, and NotRecording without `ray.init(runtime_env=hiwater.ray.env())` or before the first
    task.
    """
    _check_recorded()
    with JobCaptures(path, engine="ray") as job:
        _collect_into(job)
        return job.write()


@contextmanager
def profile(
    path: str | os.PathLike[str], sample: int | str | None = None, limit: int | str | None = None
) -> Iterator[None]:
    """Record the driver in this block, and merge its capture and those of all workers into one file at `path` at its
    end.

        with hiwater.ray.profile("job.hiw"):
            ray.get([work.remote(part) for part in parts])

    If Ray is not initialised, `ray.init(runtime_env=env(sample=sample, limit=limit))` is called. If it is, its workers
    must have been recorded from their start, with the `sample` and `limit` of `env()`: then `sample` is that of the
    driver alone. The limit is never the driver's.

    Raises CaptureUnwritable, BadSize, and NotRecording if Ray was initialised without `env()`. At the end, a failure is
    a RuntimeWarning.
    """
    with JobCaptures(path, engine="ray") as job:
        environment = env(sample=sample, limit=limit)
        if not ray.is_initialized():
            ray.init(runtime_env=environment)
        _check_recorded()
        own = f"{job.path.replace('%', '%%')}.driver.%p.hiw"
        driver = worker.start(own, engine="ray", worker="driver", sample=worker.checked(sample, limit))
        try:
            yield
        finally:
            _finish(job, driver)


def own_figures(capture: Capture) -> dict[str, int] | None:
    """Bytes of this worker in RAM when the end of a task found most shared memory in it, and of those the shared
    memory: Ray's object store, which all workers of a node share, and what else the process shares. It is read once
    a second at most. None for the capture of another process."""
    try:
        own: dict[str, int] = json.loads(capture.facts["engine_memory"])
    except (KeyError, ValueError):
        return None
    return own


def _finish(job: JobCaptures, driver: worker.Worker) -> None:
    """The program's own work is done: no failure here may become its."""
    own = worker.stop() if driver.path else ""
    try:
        if own:
            job.add_file(own, "driver")
        else:
            job.lost("driver", os.uname().nodename, driver.why, os.getpid())
        _collect_into(job)
        job.write()
    except (HiwaterError, OSError, ray.exceptions.RayError) as error:
        warnings.warn(
            f"hiwater: the captures of the workers were not merged into {job.path!r} ({error}); those of the workers"
            " are in the folder hiwater of Ray's logs",
            RuntimeWarning,
            stacklevel=4,
        )
    finally:
        if own:
            with suppress(OSError):
                os.unlink(own)


def _check_recorded() -> None:
    if not ray.is_initialized():
        raise NotRecording("Ray is not initialised in this process", _REMEDY)
    environment = ray.get_runtime_context().runtime_env
    if VARIABLE not in environment.get("env_vars", {}) and environment.get(_FIELD) != HOOK:
        raise NotRecording(
            "the workers of this Ray job are not recorded", f"{_REMEDY}: it must be there before they start"
        )


def _collect_into(job: JobCaptures) -> None:
    """Have each node list its captures, then fetch each capture from one of the nodes that have it."""
    number = ray.get_runtime_context().get_job_id()
    alive = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    listed = {node: _on(node, ray_node.found).remote(number) for node in alive}
    taken: set[str] = set()
    wanted: dict[str, list[str]] = {}
    for node, answer in listed.items():
        try:
            entries = ray.get(answer)
        except ray.exceptions.RayError as error:
            job.lost(f"all of node {node[:12]}", alive[node], f"the node did not answer: {_first_line(error)}")
            continue
        for name, why in entries:
            if name not in taken:
                taken.add(name)
                if why:
                    job.lost(_worker_of(name), alive[node], why)
                else:
                    wanted.setdefault(node, []).append(name)
    _fetch(job, number, alive, wanted)
    for node in ray.nodes():
        if not node["Alive"] and not any(name.startswith(node["NodeID"][:12]) for name in taken):
            job.lost(
                f"all of node {node['NodeID'][:12]}",
                node["NodeManagerHostname"],
                f"the node has left the cluster; captures of its workers may be in hiwater/{number} in the folder of"
                " Ray's logs there",
            )


def _fetch(job: JobCaptures, number: str, alive: dict[str, str], wanted: dict[str, list[str]]) -> None:
    """Fetch from one node after the other; the next few prepare their first pieces meanwhile."""
    streams: dict[str, Any] = {}
    waiting = iter(wanted.items())
    for _ in wanted:
        for node, names in itertools.islice(waiting, _NODES_AT_ONCE - len(streams)):
            task = _on(
                node, ray_node.pieces, num_returns="streaming", _generator_backpressure_num_objects=_PIECES_AHEAD
            )
            streams[node] = task.remote(number, names)
        node, stream = next(iter(streams.items()))
        left = set(wanted[node])
        try:
            for name, parts in itertools.groupby(map(ray.get, stream), key=lambda item: item[0]):
                job.add_pieces((piece for _, piece in parts), _worker_of(name), alive[node])
                left.discard(name)
        except ray.exceptions.RayError as error:
            for name in sorted(left):
                job.lost(_worker_of(name), alive[node], f"its capture could not be fetched: {_first_line(error)}")
        del streams[node]


def _on(node: str, function: Any, **options: Any) -> Any:
    """The function as a remote one, pinned to a node, in a worker of its own that is not recorded."""
    return ray.remote(function).options(
        num_cpus=0,
        name=f"hiwater.{function.__name__}",
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        runtime_env={"env_vars": {VARIABLE: OFF}},
        max_retries=0,
        **options,
    )


def _worker_of(name: str) -> str:
    """The process number and the node in the name of a capture."""
    node, _, rest = name.partition(".")
    return f"{rest.partition('-')[0]} of node {node}"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
