"""One of several processes that train together, without the others: its communication has no effect, and takes the
memory that it takes with NCCL.

torch's own code runs above it (DistributedDataParallel, FSDP, tensor parallelism), so that buckets, shards and buffers
are as that code makes them. A process group's name for its backend stays as asked for. The number of processes is that
of `torchrun`'s WORLD_SIZE, of `init_process_group(world_size=…)`, or 1; the process is that of RANK, or 0.
NCCL's own buffers are outside of torch's allocator, and are left out. DDP's first buckets may be held after they were
replaced: a thread that looks every 100 ms hands the tensors of finished work to the next call (`shelvesToUnstash_` in
torch's ProcessGroupNCCL.cpp). So there are a figure without them, and one in which they stay.
The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

BUCKETS, SHARDS = "buckets of gradients", "gathered shards"
_PER_HOST = 8  # processes of a host, if nobody says: what `torchrun` would set in LOCAL_WORLD_SIZE
_BACKEND = "estimate"
_FOLDERS = {
    os.path.join(os.path.dirname(torch.__file__), *parts): category
    for parts, category in (
        (("nn", "parallel", "distributed.py"), BUCKETS),
        (("distributed", "fsdp"), SHARDS),
    )
}
_MAKERS = (torch.ops.aten.empty, torch.ops.aten.zeros, torch.ops.aten.arange)
_LIFT = torch.ops.aten.lift_fresh  # of what `torch.tensor` has made
_destroy_process_group: Any = getattr(dist, "destroy_process_group", None)  # not where torch is without processes
_making_tables: list[None] = []
_running_reducer: list[None] = []
_rebuilding: list[None] = []
_planning: list[None] = []


def install(count: int | None) -> None:
    """Give programs process groups that need no network, and `torchrun`'s variables for `count` processes."""
    if count is not None:
        _set_variables(count)
    if not dist.is_available():
        return
    dist.Backend.register_backend(_BACKEND, _made, devices=["cpu", "cuda"])
    home = dist.distributed_c10d
    home._new_process_group_helper = _on_own_backend(home._new_process_group_helper)
    dist.init_process_group = home.init_process_group = alone = _alone(home.init_process_group)
    dist.device_mesh.init_process_group = alone
    dist.destroy_process_group = lambda *_: None  # a program's last act, which may be called once more
    _speak_to_oneself(home)
    _settle_meshes(dist.device_mesh.DeviceMesh)
    torch.cuda.current_device, torch.cuda.nccl.version = lambda: 0, lambda: ()  # the latter is for a log
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE")
    if local:
        torch.cuda.device_count = lambda: int(local)
    _settle_replicas()


def forget() -> None:
    """Let the next estimate make its process groups anew."""
    if are_in_use() and isinstance(dist.group.WORLD, _LoneGroup):
        _destroy_process_group()


def are_in_use() -> bool:
    """Whether there are process groups."""
    return bool(dist.is_available() and dist.is_initialized())


def notes(count: int | None) -> list[str]:
    """What a reader has to know, if the program has process groups, or should have some."""
    if not are_in_use():
        asked = f"{count} ranks were asked for, but the program made no process group: it runs as if it were alone"
        return [asked] if count is not None and count > 1 else []
    others = (
        f"this is process {dist.get_rank()} of {dist.get_world_size()}; NCCL's own buffers, some hundred MiB outside of"
        " torch's allocator, are not counted"
    )
    return [others]


def category() -> str:
    """The category of what torch's distributed code allocates, if that is running."""
    frame = sys._getframe(2) if are_in_use() else None
    while frame is not None:
        for path, found in _FOLDERS.items():
            if frame.f_code.co_filename.startswith(path):
                return found if frame.f_code.co_name not in _OF_THE_USER else ""
        frame = frame.f_back
    return ""


# Functions of that code which call the user's.
_OF_THE_USER = {"forward", "_run_ddp_forward", "inner", "backward"}


def is_distributed(kind: type) -> bool:
    """Whether tensors of this type have their memory in parts, as DTensor has."""
    found = kind.__module__.startswith("torch.distributed.")
    if found:
        _settle_planning()
    return found


def are_planning() -> bool:
    """Whether DTensor computes the shape of a result, by operators on tensors that no program has."""
    return bool(_planning)


def are_reducing() -> bool:
    """Whether DDP's reducer makes its buckets, on the card without naming it."""
    return bool(_running_reducer)


def are_replacing_buckets() -> bool:
    """Whether DDP's reducer replaces its first buckets."""
    return bool(_rebuilding)


def is_of_table(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether this makes or uses a table of integers, of ranks or of what DDP's reducer counts. They are real: their
    content decides what is done, and the reducer writes to them without operators."""
    if _making_tables and function.overloadpacket in _MAKERS:
        return options.get("dtype") is torch.int32
    is_real = bool(args) and type(args[0]) is torch.Tensor and not args[0].is_floating_point()
    return is_real and (bool(_making_tables) or (are_in_use() and function.overloadpacket is not _LIFT))


def is_on_card(function: Any) -> bool:
    """Whether a table is on the card: that of the parameters that were used, of which a copy on the host is zeros."""
    return are_reducing() and not _rebuilding and function.overloadpacket is torch.ops.aten.empty


def _set_variables(count: int) -> None:
    given = {
        "WORLD_SIZE": count, "RANK": 0, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": min(count, _PER_HOST),
        "MASTER_ADDR": "localhost", "MASTER_PORT": 29500,
    }  # fmt: skip
    os.environ.update({name: str(value) for name, value in given.items()})


# --- process groups ---------------------------------------------------------------------------------------------------


def _alone(original: Callable[..., None]) -> Callable[..., None]:
    """`init_process_group`, which waits for nobody."""

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> None:
        given = inspect.signature(original).bind_partial(*arguments, **options).arguments
        size, number = given.get("world_size", -1), given.get("rank", -1)
        original(
            given.get("backend") or "nccl",
            world_size=size if size > 0 else int(os.environ.get("WORLD_SIZE", "1")),
            rank=number if number >= 0 else int(os.environ.get("RANK", "0")),
            store=dist.HashStore(),
            group_name=given.get("group_name", ""),
        )

    return init_process_group


def _on_own_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    """`_new_process_group_helper`, which makes every group."""

    @functools.wraps(original)
    def helper(size: int, rank: int, members: Any, backend: Any, store: Any, *others: Any, **options: Any) -> Any:
        options |= {name: None for name in ("backend_options", "pg_options", "device_id") if name in options}
        made = original(size, rank, members, _BACKEND, store, *others, **options)
        world = dist.distributed_c10d._world
        if made[0] in world.pg_map:
            asked = str(backend) if backend and str(backend) != "undefined" else "nccl"
            world.pg_map[made[0]] = (asked, store)
        return made

    return helper


def _settle_meshes(kind: Any) -> None:
    original = kind.__init__

    @functools.wraps(original)
    def initialise(self: Any, _device_type: str = "cpu", *others: Any, **options: Any) -> None:
        options.pop("device_type", None)
        ranks = map(_as_table, others), {name: _as_table(value) for name, value in options.items()}
        original(self, "cpu", *ranks[0], **ranks[1])  # tensors are on no other device

    kind.__init__ = _noted(initialise, _making_tables)


def _as_table(value: Any) -> Any:
    """A table of ranks in their order, as `init_device_mesh` makes it, instead of a fake one."""
    if not isinstance(value, FakeTensor):
        return value
    return torch.arange(value.numel(), dtype=torch.int32).view(value.shape)


def _speak_to_oneself(home: Any) -> None:
    """Objects are sent as bytes of tensors, whose content is not known here: every process has what this one has."""

    def gathered(objects: list[Any] | None, own: Any, *_arguments: Any, **_options: Any) -> None:
        for place in range(len(objects or ())):
            objects[place] = own  # type: ignore[index]  # not None, as it has places

    def gathered_by_one(own: Any, objects: list[Any] | None = None, *_arguments: Any, **_options: Any) -> None:
        gathered(objects, own)

    for name, function in (
        ("all_gather_object", gathered),
        ("gather_object", gathered_by_one),
        ("broadcast_object_list", lambda *_, **__: None),
    ):
        setattr(dist, name, function)
        setattr(home, name, function)


def _made(_store: Any, rank: int, size: int, _timeout: Any) -> Any:
    return _LoneGroup(rank, size)


def _finished(result: Any) -> Any:
    future = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future)


class _LoneGroup(dist.ProcessGroup if dist.is_available() else object):  # type: ignore[misc]  # its base is untyped
    """A process group whose communication is done at once, without effect."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._number, self._count = rank, size

    def size(self) -> int:
        return self._count

    def rank(self) -> int:
        return self._number

    @property
    def pg_name(self) -> str:
        name: str = dist.distributed_c10d._world.pg_names[self]
        return name

    group_name = pg_name

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return _BACKEND

    def allgather(self, outputs: Any, inputs: Any, *_options: Any, **_named: Any) -> Any:
        """NCCL gathers into one flat buffer, and copies (`ProcessGroupNCCL::allgather`)."""
        for into, own in zip(outputs, inputs, strict=True):
            own.new_empty((len(into), *own.shape))
        return _finished(outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, *_options: Any, **_named: Any) -> Any:
        """NCCL copies into one flat buffer first (`ProcessGroupNCCL::reduce_scatter`)."""
        for into, parts in zip(outputs, inputs, strict=True):
            into.new_empty((len(parts), *into.shape))
        return _finished(outputs)

    def barrier(self, *_options: Any, **_named: Any) -> Any:
        return _finished([])


def _unchanged(_group: _LoneGroup, results: Any, *_arguments: Any, **_options: Any) -> Any:
    return _finished([results] if isinstance(results, torch.Tensor) else results)


for _name in (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "_allgather_base", "allgather_into_tensor_coalesced",
    "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "gather", "scatter", "send",
    "recv", "recv_anysource",
):  # fmt: skip
    setattr(_LoneGroup, _name, _unchanged)


# --- DistributedDataParallel ------------------------------------------------------------------------------------------


def _settle_replicas() -> None:
    home = nn.parallel.distributed
    home._verify_param_shape_across_processes = lambda *_, **__: None  # it reads what others have sent
    nn.SyncBatchNorm.convert_sync_batchnorm = classmethod(lambda _cls, module, *_, **__: module)  # it needs a card
    home.DistributedDataParallel.__init__ = _without_devices(home.DistributedDataParallel.__init__)
    for name, also in (("__init__", ()), ("_set_static_graph", ()), ("_rebuild_buckets", (_rebuilding,))):
        original = getattr(dist.Reducer, name)
        setattr(dist.Reducer, name, _noted(original, _running_reducer, _making_tables, *also))


def _without_devices(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def initialise(*arguments: Any, **options: Any) -> None:
        given = inspect.signature(original).bind(*arguments, **options)
        for name in ("device_ids", "output_device"):
            given.arguments.pop(name, None)
        original(*given.args, **given.kwargs)

    return initialise


def _noted(original: Callable[..., Any], *running: list[None]) -> Callable[..., Any]:
    """The function; these lists are not empty while it runs."""

    @functools.wraps(original)
    def called(*arguments: Any, **options: Any) -> Any:
        for each in running:
            each.append(None)
        try:
            return original(*arguments, **options)
        finally:
            for each in running:
                each.pop()

    return called


# --- DTensor ----------------------------------------------------------------------------------------------------------


@functools.cache
def _settle_planning() -> None:
    """Once there are such tensors: their module takes time to import."""
    home: Any = sys.modules["torch.distributed.tensor._sharding_prop"]
    for name in ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta"):
        if hasattr(home.ShardingPropagator, name):
            setattr(home.ShardingPropagator, name, _noted(getattr(home.ShardingPropagator, name), _planning))
