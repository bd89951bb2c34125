"""Dask: `profile(client, "job.hiw")` records every worker of a cluster into one file. `dask_remote` is what runs in
the cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import distributed

from hiwater.contrib.cluster import dask_remote as remote
from hiwater.contrib.cluster import sent_code
from hiwater.contrib.cluster import worker as recording
from hiwater.contrib.cluster.job import JobCaptures
from hiwater.errors import AlreadyRecording, BadRequest

_PRELOAD = "preload"
_AT_ONCE = 8  # captures on their way
_ANSWER_SECONDS = 60
_CONNECT_SECONDS = 5  # to a cluster that may be gone
_NANNY_SECONDS = 5  # for the nanny of a worker that has just died to send its capture


class DaskProfile:
    """What `profile()` returns: `with` for a client, `async with` for an asynchronous one. `path` is that of the
    job's file."""

    def __init__(self, client: distributed.Client, path: str | os.PathLike[str], sample: Any, limit: Any) -> None:
        self._client = client
        self._address = ""
        self._job = JobCaptures(path, engine="dask")
        self._sample, self._limit = recording.checked(sample, limit), limit
        self._name = os.urandom(6).hex()
        self._places: dict[str, tuple[str, str]] = {}  # by worker: the boot of its machine, its folder for captures
        self._kept_at = ("", "")  # the same of the scheduler
        self.path = self._job.path

    def __enter__(self) -> Self:
        if self._client.asynchronous:
            raise BadRequest("this client is asynchronous", "use `async with hiwater.dask.profile(...)`")
        self._client.sync(self._begin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_connected:
            self._client.sync(self._end)
        else:
            with ThreadPoolExecutor(1) as thread:  # the program may have an event loop in this one
                thread.submit(asyncio.run, self._end_without_client()).result()

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._is_connected:
            await self._end()
        else:
            await self._end_without_client()

    @property
    def _is_connected(self) -> bool:
        return bool(self._client.status == "running")

    async def _begin(self) -> None:
        """Register the plugins: those of the scheduler and the nannies first, which save what the workers record."""
        client = self._client
        self._address = client.scheduler.address
        if await _quietly(client.run_on_scheduler(remote.is_busy)):
            raise AlreadyRecording(
                "the workers of this cluster are being recorded already, by another profile()",
                "wait until that one has ended",
            )
        await client.register_plugin(remote.CollectCaptures(self._name))
        await client.register_plugin(remote.KeepCaptures(self._name))
        await client.register_plugin(remote.RecordWorker(self._name, self._sample, self._limit, sent_code.files()))
        self._places = await _quietly(client.run(remote.places_of_worker, self._name, on_error="ignore")) or {}
        self._kept_at = await _quietly(client.run_on_scheduler(remote.place_of_scheduler)) or ("", "")

    async def _end(self) -> None:
        """Collect. The program's own work is done: no failure here may become its."""
        try:
            await _collect(self._client, self._name, self._job)
        except Exception as error:  # noqa: BLE001 - whatever the cluster raises
            _warn(self.path, self._name, error)
        finally:
            self._job.close()

    async def _end_without_client(self) -> None:
        """The client was closed inside the block: collect with another one. If the cluster was closed, too, merge
        what it left on this machine."""
        try:
            client = await distributed.Client(
                self._address,
                security=self._client.security,
                timeout=_CONNECT_SECONDS,
                asynchronous=True,
                set_as_default=False,
            )
        except Exception:  # noqa: BLE001 - whatever a cluster that is gone raises
            await asyncio.to_thread(self._end_without_cluster)
            return
        async with client:
            self._client = client
            await self._end()

    def _end_without_cluster(self) -> None:
        try:
            _collect_here(self._job, self._places, self._kept_at)
        except Exception as error:  # noqa: BLE001 - the program's own work is done
            _warn(self.path, self._name, error)
        finally:
            self._job.close()


def profile(
    client: distributed.Client,
    path: str | os.PathLike[str],
    sample: int | str | None = None,
    limit: int | str | None = None,
) -> DaskProfile:
    """Return a context manager that records all workers of the client's cluster, those that join later, too, and merges
    their captures into one file at `path` at its end.

        with hiwater.dask.profile(client, "job.hiw"):
            table.groupby("key").mean().compute()

    Use `async with` with an asynchronous client. Each task is a phase with the name of its kind (its key's prefix).
    `sample`, in bytes, is as for `hiwater.record()`: 256 KiB by default, 0 records every block. `limit`, in bytes, is a
    ceiling for each worker's address space: beyond it a task gets MemoryError. A worker that cannot be recorded goes
    on, and the report names it. A capture of a worker that was killed is in the file, too.

    Raises CaptureUnwritable, BadSize, BadRequest, and AlreadyRecording at the start. At the end, a failure is a
    RuntimeWarning.
    """
    return DaskProfile(client, path, sample, limit)


def collect(client: distributed.Client, path: str | os.PathLike[str]) -> Any:
    """End the recordings of workers that were started with `dask worker --preload hiwater.dask`, and merge their
    captures into one file at `path`.

    Returns an awaitable if the client is asynchronous. Raises CaptureUnwritable, and NotRecording if no worker was
    recorded.
    """
    job = JobCaptures(path, engine="dask")

    async def collected() -> None:
        try:
            await _collect(client, _PRELOAD, job)
        finally:
            job.close()

    return client.sync(collected)


async def dask_setup(node: Any) -> None:
    """Called by `dask worker`, `dask scheduler` and `dask-ssh` with `--preload hiwater.dask`: record this worker, or
    keep the captures of others.

    `HIWATER_SAMPLE` and `HIWATER_LIMIT` are as `sample` and `limit` of `profile()`.
    """
    if isinstance(node, distributed.Worker):
        plugin = remote.RecordWorker(
            _PRELOAD, os.environ.get("HIWATER_SAMPLE", recording.SAMPLE), os.environ.get("HIWATER_LIMIT")
        )
        await node.plugin_add(plugin, name=remote.PRELOADED)
    elif isinstance(node, distributed.Nanny):
        await node.plugin_add(remote.KeepCaptures(_PRELOAD))
    elif isinstance(node, distributed.Scheduler):
        keeper = remote.CollectCaptures(_PRELOAD)
        await keeper.start(node)
        node.add_plugin(keeper, name=keeper.name)


async def _collect(client: distributed.Client, name: str, job: JobCaptures) -> None:
    """Stop all recordings, fetch the captures, and write the job's file. Then remove the captures from the cluster."""
    collection = _Collection(client, name, job)
    await _quietly(client.unregister_worker_plugin(remote.KeepCaptures.name, nanny=True))
    await collection.of_workers()
    await collection.of_nannies()
    await collection.of_scheduler()
    await _quietly(client.unregister_worker_plugin(remote.RecordWorker.name))
    await asyncio.to_thread(job.write)
    await _quietly(client.run(remote.remove, name, on_error="ignore"))
    await _quietly(client.run_on_scheduler(remote.forget_at_scheduler))
    await _quietly(client.unregister_scheduler_plugin(remote.CollectCaptures.name))


def _collect_here(job: JobCaptures, places: dict[str, tuple[str, str]], kept_at: tuple[str, str]) -> None:
    """Merge what the workers and the scheduler of a closed cluster left in these places, as far as they are on this
    machine, and remove it."""
    known, boot = set[str](), remote.boot()
    kept, folders = kept_at[1] if kept_at[0] == boot else "", {path for of, path in places.values() if of == boot}
    for name in remote.kept_in(kept) if kept else ():
        pieces, offset = list[bytes](), 0
        while data := remote.read_kept(kept, name, offset):
            pieces.append(data)
            offset += 8 + len(data)
        job.add_pieces(pieces, name.rpartition("-")[0])
        known.add(name)
    for folder in sorted(folders):
        for path, _ in remote.left_in(folder, 0):
            if os.path.basename(path) not in known:
                job.add_file(remote.freeze(path), os.path.basename(path).rpartition("-")[0])
                known.add(os.path.basename(path))
    stems = {name.rpartition("-")[0] for name in known}
    for address in places:
        if remote.stem_of(address) not in stems:
            job.lost(address, "", "the cluster was closed before its capture was fetched")
    job.write()
    for folder in (*folders, *filter(None, [kept])):
        shutil.rmtree(folder, ignore_errors=True)


class _Collection:
    """The captures of one job, on their way from the cluster."""

    def __init__(self, client: distributed.Client, name: str, job: JobCaptures) -> None:
        self._client, self._name, self._job = client, name, job
        self._code = sent_code.files()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._taken: set[str] = set()  # identities of files
        self._known: set[str] = set()  # stems of workers that have a capture, or are known to have none
        self._since_ns = 0  # when the scheduler started: captures from before are another cluster's
        self._left: dict[str, tuple[str, str, bool]] = {}  # by identity: path, address, whether of the nanny there

    async def of_workers(self) -> None:
        """Stop the recordings of the workers that are there, and fetch their captures."""
        self._since_ns = await _quietly(self._client.run_on_scheduler(remote.started_unix_ns)) or 0
        addresses = await self._client.ncores()
        await asyncio.gather(*(self._of_worker(address) for address in addresses))

    async def _of_worker(self, address: str) -> None:
        async with self._slots:
            answer = await self._ask(address, remote.finish, self._name, self._since_ns, self._code)
            if not isinstance(answer, dict):
                self._lose(address, "", f"it did not answer: {answer}")
                return
            self._left.update({identity: (path, address, False) for path, identity in answer["left"]})
            if not answer["path"]:
                self._lose(address, answer["host"], answer["why"])
            elif answer["identity"] not in self._taken:  # workers of one process share its capture
                self._taken.add(answer["identity"])
                await self._fetch(address, answer["path"], answer["host"])
            else:
                self._known.add(remote.stem_of(address))

    async def of_nannies(self) -> None:
        """Fetch what lies in the folders of the job: captures of workers that died, or do not answer."""
        asked = self._client.run(remote.left_at_nanny, self._name, self._since_ns, nanny=True, on_error="ignore")
        answers = await _quietly(asked) or {}
        for address, files in answers.items():
            self._left.update({identity: (path, address, True) for path, identity in files})
        for identity, (path, address, at_nanny) in self._left.items():
            if identity not in self._taken:
                self._taken.add(identity)
                frozen = await self._ask(address, remote.freeze, path, nanny=at_nanny)
                if isinstance(frozen, str):
                    await self._fetch(address, frozen, "", nanny=at_nanny)

    async def of_scheduler(self) -> None:
        """Fetch what workers and nannies have sent to the scheduler, and note the workers of which there is nothing."""
        fetched: set[str] = set()
        for _ in range(_NANNY_SECONDS):
            found = await _quietly(self._client.run_on_scheduler(remote.seen_by_scheduler))
            seen, kept = found or ({}, [])
            for name in kept:
                if name not in fetched:
                    fetched.add(name)
                    await self._fetch_kept(name)
            missing = {one: host for one, host in seen.items() if remote.stem_of(one) not in self._known}
            if not missing:
                return
            await asyncio.sleep(1)
        for address, host in missing.items():
            self._lose(
                address,
                host,
                "it left no capture: it ended together with its nanny or its machine, or it was not recorded",
            )

    async def _fetch_kept(self, name: str) -> None:
        pieces, offset = list[bytes](), 0
        while data := await self._client.run_on_scheduler(remote.read_at_scheduler, name, offset):
            pieces.append(data)
            offset += 8 + len(data)
        self._add(name, pieces, "")

    async def _fetch(self, address: str, path: str, host: str, *, nanny: bool = False) -> None:
        pieces = list[bytes]()
        while data := await self._ask(address, recording.piece, path, len(pieces), nanny=nanny):
            if not isinstance(data, bytes):
                self._lose(address, host, f"its capture could not be fetched: {data}")
                return
            pieces.append(data)
        self._add(os.path.basename(path), pieces, host)

    def _add(self, name: str, pieces: list[bytes], host: str) -> None:
        stem = name.rpartition("-")[0]
        self._known.add(stem)
        self._job.add_pieces(pieces, stem, host)

    def _lose(self, address: str, host: str, why: str) -> None:
        self._known.add(remote.stem_of(address))
        self._job.lost(address, host, why)

    async def _ask(self, address: str, function: Callable[..., Any], *arguments: Any, nanny: bool = False) -> Any:
        """The result of a call in one worker, or in its nanny; an exception, if that is what came of it."""
        call = self._client.run(function, *arguments, workers=[address], nanny=nanny, on_error="return")
        try:
            answers = await asyncio.wait_for(call, _ANSWER_SECONDS)
        except Exception as error:  # noqa: BLE001 - the worker may be in any state
            return error
        return answers.get(address)


async def _quietly(work: Awaitable[Any]) -> Any:
    """The result of a call that the job can do without; None if it failed."""
    try:
        return await asyncio.wait_for(work, _ANSWER_SECONDS)
    except Exception:  # noqa: BLE001 - an older scheduler, or one without hiwater
        return None


def _warn(path: str, name: str, error: Exception) -> None:
    warnings.warn(
        f"hiwater: the captures of the workers were not merged into {path!r} ({error}): those that could not be fetched"
        f" are in the folder hiwater-{name} beside the workers' own folders",
        RuntimeWarning,
        stacklevel=2,
    )
