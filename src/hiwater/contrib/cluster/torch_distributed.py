"""torch.distributed: each rank of an initialised process group records itself, and rank 0 merges the captures into
one file."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch.distributed as dist

from hiwater._os import destination
from hiwater.contrib.cluster import worker
from hiwater.contrib.cluster.job import JobCaptures
from hiwater.errors import BadRequest

RANKS_SUFFIX = ".ranks"
"""Of the folder with the captures of the ranks, beside the job's file."""

_PATIENCE = timedelta(seconds=60)  # for ranks that do not come to the end


class _Capture(NamedTuple):
    """The capture of a rank, as the rank knows it. `why` says why there is none."""

    rank: int
    host: str
    pid: int
    path: str
    bytes: int
    why: str


class TorchProfile:
    """What `profile()` returns. `path` is that of the job's file, which rank 0 writes."""

    def __init__(self, path: str | os.PathLike[str], sample: int | str | None, limit: int | str | None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise BadRequest(
                "torch.distributed has no process group yet",
                "call torch.distributed.init_process_group() first, or launch the ranks with `torchrun --no-python"
                " hiwater run`",
            )
        self._sample, self._limit = worker.checked(sample, limit), limit
        self._rank = dist.get_rank()
        self._job = JobCaptures(path, engine="torch") if self._rank == 0 else None
        self.path = destination.absolute(destination.expand(os.fspath(path)))
        self._folder = self.path + RANKS_SUFFIX

    def __enter__(self) -> Self:
        """Record this rank. Every rank enters: they make a group for the captures together."""
        if self._rank == 0:
            self._forget_earlier()  # before the others begin: they wait for the group
        try:
            self._group: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)
        except Exception as error:  # noqa: BLE001 - whatever torch raises: the program can train without
            self._group = None
            text = f"rank {self._rank} can send nothing to rank 0, which merges the captures that it sees: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self._recording = worker.start(
            f"{self._folder.replace('%', '%%')}/{self._rank}.%p.hiw",
            engine="torch",
            worker="" if destination.rank() else f"rank {self._rank}",
            sample=self._sample,
            limit=self._limit,
            restart=destination.restart() or "",
        )
        if self._recording.why:
            warnings.warn(f"rank {self._rank}: {self._recording.why}", RuntimeWarning, stacklevel=2)
        return self

    def _forget_earlier(self) -> None:
        """Remove the captures of an earlier job of the same name, which rank 0 would take for this one's."""
        for path in Path(self._folder).glob("*.hiw"):
            with suppress(OSError):
                path.unlink()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Merge the captures. No failure here may become the program's. A rank that failed waits for no other."""
        worker.stop()
        try:
            self._merge(has_failed=kind is not None or self._group is None)
        except Exception as error:  # noqa: BLE001 - whatever torch raises
            text = f"the captures of the ranks are in {self._folder!r}, and were not merged into {self.path!r}: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _merge(self, *, has_failed: bool) -> None:
        if self._job is None:
            if not has_failed:
                self._send()
            return
        with self._job as job:
            here = {str(path) for path in Path(self._folder).glob("*.hiw")}
            try:
                if not has_failed:
                    here -= self._receive(job)
            except Exception as error:  # noqa: BLE001 - ranks that failed or ended are why
                text = f"{str(error).splitlines()[0][:200]}: a capture that is not on this machine is missing"
                job.lost("ranks", "", f"not every rank came to the end ({text})")
            for path in sorted(here):
                job.add_file(path)
            job.write()

    def _own(self) -> _Capture:
        path = self._recording.path
        size = os.path.getsize(path) if path else 0
        return _Capture(self._rank, os.uname().nodename, os.getpid(), path, size, self._recording.why)

    def _send(self) -> None:
        """Tell rank 0 where the capture of this rank is, and send it if rank 0 does not have it there."""
        own = self._own()
        dist.gather_object(own, None, dst=0, group=self._group)
        missing: list[Any] = [None]
        dist.broadcast_object_list(missing, src=0, group=self._group)
        if self._rank in missing[0]:
            for piece in worker.pieces(own.path):
                dist.send_object_list([piece], dst=0, group=self._group)
            dist.send_object_list([b""], dst=0, group=self._group)

    def _receive(self, job: JobCaptures) -> set[str]:
        """Add the captures that are in this folder under their names, and those that other ranks send; return the
        former."""
        captures: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(self._own(), captures, dst=0, group=self._group)
        is_here = {one.path: bool(one.path) and _has(one) for one in captures}
        missing = [one for one in captures if one.path and not is_here[one.path]]
        dist.broadcast_object_list([[one.rank for one in missing]], src=0, group=self._group)
        for one in captures:
            if not one.path:
                job.lost(f"rank {one.rank}", one.host, one.why, one.pid)
            elif is_here[one.path]:
                job.add_file(one.path, f"rank {one.rank}", one.host)
        for one in missing:
            job.add_pieces(_pieces_of(one.rank, self._group), f"rank {one.rank}", one.host)
        return {path for path, here in is_here.items() if here}


def _has(capture: _Capture) -> bool:
    """Whether this machine has the file. The name has rank and process number, and a file of another job would have
    another size."""
    return os.path.isfile(capture.path) and os.path.getsize(capture.path) == capture.bytes


def _pieces_of(rank: int, group: Any) -> Any:
    piece: list[Any] = [None]
    while True:
        dist.recv_object_list(piece, src=rank, group=group)
        if not piece[0]:
            return
        yield piece[0]


def profile(
    path: str | os.PathLike[str], sample: int | str | None = None, limit: int | str | None = None
) -> TorchProfile:
    """Return a context manager that records each rank of torch's default process group. At its end, rank 0 merges the
    captures into one file at `path`.

        torch.distributed.init_process_group("gloo")
        with profile("job.hiw"):
            train()

    All ranks enter and leave it. `sample`, in bytes, is as for `hiwater.record()`: 256 KiB by default, 0 records every
    block. `limit`, in bytes, is a ceiling for each rank's address space. Captures lie in the folder `job.hiw.ranks` of
    each machine. Rank 0 takes them from there if it sees them, and else receives them, compressed, one piece at a time.
    If a rank fails, the file has the captures that rank 0 sees.

    Raises BadRequest without a process group, BadSize, CaptureUnwritable on rank 0. At the end, a failure is a
    RuntimeWarning.
    """
    return TorchProfile(path, sample, limit)
