"""What runs in the processes of a Dask cluster: in each worker, its nanny, and the scheduler. `dask` is the client's
side.

A worker's capture is a file in `hiwater-JOB`, beside the worker's own folder: Dask removes that one when the worker has
died. The file's name has the worker's address and process number. At the end of the job the client fetches the files. A
worker that leaves before sends its file to the scheduler, and a nanny sends that of a worker that died.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dask.utils import key_split
from distributed.diagnostics.plugin import NannyPlugin, SchedulerPlugin, WorkerPlugin

from hiwater._os import native
from hiwater.contrib.cluster import sent_code
from hiwater.contrib.cluster import worker as recording
from hiwater.contrib.cluster.portable import Portable

PRELOADED = "hiwater-preload"
"""The name of the plugin in a worker that was started with `--preload hiwater.dask`."""

_RUNNING = ("executing", "long-running")
_GROWN = 1.05  # the worker's own figures are noted again when its memory has grown by so much
_NANNY_SECONDS = 1.0
_SEND_SECONDS = 10.0  # for a piece; a scheduler that is gone must not keep a worker from closing
_HANDLER = "hiwater_capture"
_logger = logging.getLogger("distributed.hiwater")


def place_of(local_directory: str, job: str) -> str:
    """The folder for captures of a job on the disk that the worker spills to."""
    return os.path.join(os.path.dirname(local_directory.rstrip(os.sep)), f"hiwater-{job}")


def stem_of(address: str) -> str:
    """A worker's address as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._]", "_", address)


class RecordWorker(Portable, WorkerPlugin):  # type: ignore[misc] # Dask's types are not followed
    """Records a worker from now on, also one that joins later, and makes each task a phase."""

    base = "distributed.diagnostics.plugin:WorkerPlugin"
    name = "hiwater-worker"

    def __init__(self, job: str, sample: int | str | None, limit: int | str | None, code: str = "{}") -> None:
        """`code` is what `sent_code.files()` says of the client."""
        self._job, self._sample, self._limit, self._code = job, sample, limit, code
        self._open: dict[Any, int] = {}
        self._noted = 0
        self._worker: Any = None
        self.why = ""

    def state(self) -> tuple[Any, ...]:
        return (self._job, self._sample, self._limit, self._code)

    def setup(self, worker: Any) -> None:
        """Start. A failure is logged, and told to the client at the end."""
        if PRELOADED in worker.plugins and worker.plugins[PRELOADED] is not self:
            return  # that one records this worker
        self._worker = worker
        name = worker.address if worker.name in {None, worker.address} else f"{worker.name} ({worker.address})"
        file = f"{stem_of(worker.address)}-%p.hiw"
        place = os.path.join(place_of(worker.local_directory, self._job), file)
        begun = recording.start(place, engine="dask", worker=name, sample=self._sample, limit=self._limit)
        self.why = begun.why
        recording.note(sent_code.FACT, self._code)
        if worker.memory_manager.memory_limit:
            recording.note("worker_limit_bytes", str(worker.memory_manager.memory_limit))
        if begun.why:
            _logger.warning("hiwater: this worker is %s: %s", "recorded" if begun.path else "not recorded", begun.why)

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        """Begin and end the phase of a task, which has the name of its kind."""
        if self._worker is None:
            return
        if finish == "executing":
            self._open[key] = recording.phase_begin(key_split(key))
        elif start in _RUNNING and finish not in _RUNNING:
            recording.phase_end(self._open.pop(key, 0))
            self.note_memory(_GROWN)

    def note_memory(self, grown: float) -> None:
        """Put the worker's own figures into the capture when its memory is at a new height."""
        if self._worker is None:
            return
        own = own_figures(self._worker)
        if own["process_bytes"] > self._noted * grown:
            self._noted = own["process_bytes"]
            recording.note("engine_memory", json.dumps(own))

    async def teardown(self, worker: Any) -> None:
        """Stop. If the worker closes, its capture goes to the scheduler."""
        self.note_memory(1)
        path = recording.stop()
        if path and worker.status.name.startswith("clos"):
            await _send(worker.scheduler, path)


def own_figures(worker: Any) -> dict[str, int]:
    """Dask's own figures of a worker in bytes: memory of the process as it last sampled it; results in memory
    (managed); results on disk (spilled)."""
    memory, _ = getattr(worker.data, "spilled_total", (0, 0))
    return {
        "process_bytes": int(worker.monitor.recent().get("memory", 0)),
        "managed_bytes": max(0, int(worker.state.nbytes) - int(memory)),
        "spilled_bytes": int(memory),
    }


class KeepCaptures(Portable, NannyPlugin):  # type: ignore[misc] # Dask's types are not followed
    """Sends the captures of workers that died to the scheduler, within a second or two."""

    base = "distributed.diagnostics.plugin:NannyPlugin"
    name = "hiwater-nanny"

    def __init__(self, job: str) -> None:
        self._job = job
        self._since_ns = 0
        self._task: asyncio.Task[None] | None = None

    def state(self) -> tuple[Any, ...]:
        return (self._job,)

    def setup(self, nanny: Any) -> None:
        self._since_ns = time.time_ns()
        self._task = asyncio.create_task(self._watch(nanny))

    async def _watch(self, nanny: Any) -> None:
        while True:
            await asyncio.sleep(_NANNY_SECONDS)
            await self._send_all(nanny)

    async def _send_all(self, nanny: Any) -> None:
        folder = _folder_of_nanny(nanny, self._job)
        for path in _captures_of_dead(folder):
            if not _is_of_before(path, self._since_ns) and _is_first(path):
                await _send(nanny.scheduler, path)

    async def teardown(self, nanny: Any) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._send_all(nanny)


class CollectCaptures(Portable, SchedulerPlugin):  # type: ignore[misc] # Dask's types are not followed
    """Keeps the captures that workers and nannies send, on the scheduler's disk, and knows which workers there were."""

    base = "distributed.diagnostics.plugin:SchedulerPlugin"
    name = "hiwater-scheduler"

    def __init__(self, job: str) -> None:
        self._job = job
        self.folder = ""
        self.seen: dict[str, str] = {}

    def state(self) -> tuple[Any, ...]:
        return (self._job,)

    async def start(self, scheduler: Any) -> None:
        self.folder = tempfile.mkdtemp(prefix="hiwater-job-")
        scheduler.handlers[_HANDLER] = self._receive
        for address in scheduler.workers:
            self.add_worker(scheduler, address)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self.seen[worker] = scheduler.workers[worker].host

    def _receive(self, name: str, number: int, data: bytes) -> None:
        """Keep a piece of a capture. The first one replaces the file: an earlier sender may have died."""
        place = os.path.join(self.folder, os.path.basename(name))
        with open(place, "wb" if number == 0 else "ab") as file:
            file.write(len(data).to_bytes(8, "little") + data)

    def forget(self, scheduler: Any) -> None:
        """Remove what was kept."""
        scheduler.handlers.pop(_HANDLER, None)
        shutil.rmtree(self.folder, ignore_errors=True)


async def _send(scheduler: Any, path: str) -> None:
    """Send a capture to the scheduler, and remove it. If that fails, it stays, for the client to fetch."""
    try:
        for number, data in enumerate(recording.pieces(path)):
            sent = getattr(scheduler, _HANDLER)(name=os.path.basename(path), number=number, data=data)
            await asyncio.wait_for(sent, _SEND_SECONDS)
        os.unlink(path)
    except Exception as error:  # noqa: BLE001 - a worker must close whatever happens to its capture
        _logger.warning("hiwater: the capture %s could not be sent to the scheduler: %s", path, error)


def _folder_of_nanny(nanny: Any, job: str) -> str:
    return os.path.join(nanny.local_directory, f"hiwater-{job}")


def _captures_of_dead(folder: str) -> list[str]:
    """The captures in a folder whose processes have ended, by the numbers in their names."""
    return [str(path) for path in sorted(Path(folder).glob("*.hiw")) if not _is_alive(path)]


def _is_alive(path: Path) -> bool:
    return os.path.exists(f"/proc/{path.stem.rpartition('-')[2]}")


def _is_first(path: str) -> bool:
    """Whether no other nanny of this machine sends this capture."""
    try:
        os.close(os.open(path + ".sent", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    return True


# What the client calls


def places_of_worker(job: str, dask_worker: Any) -> tuple[str, str]:
    """In a worker: the boot of its machine, and its folder for captures."""
    return boot(), place_of(dask_worker.local_directory, job)


def place_of_scheduler(dask_scheduler: Any) -> tuple[str, str]:
    """In the scheduler: the boot of its machine, and the folder for what workers and nannies send."""
    return boot(), dask_scheduler.plugins[CollectCaptures.name].folder


def started_unix_ns(dask_scheduler: Any) -> int:
    """In the scheduler: when it started."""
    return int(dask_scheduler.time_started * 1e9)


def finish(job: str, since_ns: int, code: str, dask_worker: Any) -> dict[str, Any]:
    """In a worker: stop recording. `code` is what `sent_code.files()` now says of the client. The result tells where
    its capture is, why there is none, and which captures are left in its folder."""
    plugins = [one for one in dask_worker.plugins.values() if isinstance(one, RecordWorker)]
    for plugin in plugins:
        plugin.note_memory(1)
    recording.note(sent_code.FACT, code)
    path = recording.stop()
    why = "; ".join(plugin.why for plugin in plugins if plugin.why) or "its recording did not start"
    return {
        "path": path,
        "identity": _identity(path) if path else "",
        "why": "" if path else why,
        "host": socket.gethostname(),
        "left": left_in(place_of(dask_worker.local_directory, job), since_ns),
    }


def left_in(folder: str, since_ns: int) -> list[tuple[str, str]]:
    """The captures in a folder, each with what tells it from all other files of the cluster. Those of an earlier
    cluster, whose workers ended before `since_ns`, are left out."""
    paths = sorted(Path(folder).glob("*.hiw"))
    return [(str(path), _identity(path)) for path in paths if not _is_of_before(path, since_ns)]


def kept_in(folder: str) -> list[str]:
    """The names of the captures that were sent to the scheduler with this folder."""
    return sorted(path.name for path in Path(folder).glob("*.hiw"))


def read_kept(folder: str, name: str, offset: int) -> bytes:
    """The piece of a kept capture that begins at `offset`; empty after the last."""
    with open(os.path.join(folder, os.path.basename(name)), "rb") as file:
        file.seek(offset)
        return file.read(int.from_bytes(file.read(8), "little"))


def _is_of_before(path: str | Path, since_ns: int) -> bool:
    """Whether the process that wrote this capture showed its last sign of life before that time, in nanoseconds
    since 1970."""
    ending = native.load().read_ending(str(path))
    return ending is not None and ending[1] < since_ns


def _identity(path: str | Path) -> str:
    with suppress(OSError):
        status = os.stat(path)
        return f"{boot()} {status.st_dev} {status.st_ino}"
    return ""


def boot() -> str:
    """What tells this machine, since it started, from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def freeze(path: str) -> str:
    """The path of a capture that does not change any more: the same, or that of a copy if its process writes it
    still."""
    if not _is_alive(Path(path)):
        return path
    from hiwater.capture import copying

    with open(path, "rb") as file, open(f"{path.removesuffix('.hiw')}.copy", "wb") as copy:
        copy.write(copying.copy(file.fileno()))
    return copy.name


def left_at_nanny(job: str, since_ns: int, dask_worker: Any) -> list[tuple[str, str]]:
    """In a nanny: the captures that are left in its folder."""
    return left_in(_folder_of_nanny(dask_worker, job), since_ns)


def remove(job: str, dask_worker: Any) -> None:
    """In a worker: remove the job's folder, whose captures the client has."""
    shutil.rmtree(place_of(dask_worker.local_directory, job), ignore_errors=True)


def is_busy(dask_scheduler: Any) -> bool:
    """In the scheduler: whether the workers are being recorded for another `profile()`."""
    return CollectCaptures.name in dask_scheduler.plugins and RecordWorker.name in dask_scheduler.worker_plugins


def seen_by_scheduler(dask_scheduler: Any) -> tuple[dict[str, str], list[str]]:
    """In the scheduler: the workers since the start of the job with their hosts, and the names of the captures that
    were sent there."""
    plugin = dask_scheduler.plugins.get(CollectCaptures.name)
    if plugin is None or not hasattr(plugin, "seen"):
        return {}, []
    return dict(plugin.seen), kept_in(plugin.folder)


def read_at_scheduler(name: str, offset: int, dask_scheduler: Any) -> bytes:
    """In the scheduler: the piece of a kept capture that begins at `offset`; empty after the last."""
    return read_kept(dask_scheduler.plugins[CollectCaptures.name].folder, name, offset)


def forget_at_scheduler(dask_scheduler: Any) -> None:
    """In the scheduler: remove what was kept."""
    plugin = dask_scheduler.plugins.get(CollectCaptures.name)
    if plugin is not None and hasattr(plugin, "forget"):
        plugin.forget(dask_scheduler)
