"""A CUDA build of torch on a machine without a GPU: the real Python layer of `torch.cuda` over a `torch._C` that is
simulated.

Needs torch (the CPU build will do). `torch.cuda` is made anew from the files of the installed torch, or of the oldest
supported one (`layer.py`); what lies below, in C++ in a real build, is written after torch's sources (each file says
which) in the same order, with the same locks and the same refusals. Kernels do not exist: tensors cannot be made on the
device, memory is allocated by `torch.cuda.caching_allocator_alloc(size, stream=0)` or by `cuda[0].malloc(size)`.

In a test:

    from cuda_double import installed

    def test_it():
        with installed(cards=2) as cuda:          # within the block torch.cuda is the double's
            cuda.initialise()                     # torch.cuda.init()
            block = cuda[0].malloc(40 << 20)      # a DeviceAllocator: malloc, free, record_stream, finish, stats …
            cuda[0].free(block)

or `cuda = request.getfixturevalue(...)` of your own around it. In a program of its own, or in a script on a machine
without a card:

    import sys; sys.path.insert(0, ".../tests/helpers")
    from cuda_double import install
    cuda = install()                              # for good

Arguments of both: `cards` (how many, or a list of `card.Card`), `backend` ("native", "cudaMallocAsync", "pluggable"),
`version` ("installed", or "2.2.2": raises LayerMissing where `fetch.py` was not run), `expandable` segments.

`cuda.bindings.calls` lists who asked for history; `cuda.bindings.place` is called inside C functions (`pending.At` uses
it to have a call fall due anywhere); `cuda[0].history.frames` replaces the stacks that events get; `cuda[0].snapshots`
counts snapshots; `cuda.cards[0]` is the driver's side. What would hang the real library raises `bindings.Deadlock`, and
is noted in `bindings.deadlocks`.

Nothing of this has been compared with a GPU: it is as good as the reading of the sources.
"""

import sys
from contextlib import contextmanager

from . import backends, layer
from .bindings import Bindings, Deadlock
from .card import Card

__all__ = ["Card", "Cuda", "Deadlock", "LayerMissing", "forget", "install", "installed"]


class LayerMissing(Exception):
    """The Python layer of this version was not fetched: `python tests/helpers/cuda_double/fetch.py VERSION`."""


class Cuda:
    """The double that is in place: `torch`, `cards`, `bindings`, and by its number each device's allocator."""

    def __init__(self, torch, cards, bindings, make_backend):
        self.torch, self.cards, self.bindings = torch, cards, bindings
        self._make_backend = make_backend
        self._torchs_own_calls = len(torch.cuda._queued_calls)

    def renew(self):
        """As in a new process, without loading the layer anew: CUDA is not initialised, the queue has torch's own
        calls alone."""
        forget()
        module = self.torch.cuda
        module._initialized, module.default_generators = False, ()
        del module._queued_calls[self._torchs_own_calls :]
        for card in self.cards:
            card.has_context, card.mapped_bytes = False, 0
        self.bindings.__init__(self.torch, self._make_backend(), self.cards, is_old=self.bindings._is_old)

    @property
    def module(self):
        """`torch.cuda`, as it is now."""
        return self.torch.cuda

    def initialise(self, *devices):
        """What a program's first use does: `torch.cuda.init()`, and a context on each of `devices` (the first)."""
        self.torch.cuda.init()
        for device in devices or (0,):
            self.cards[device].has_context = True

    def __getitem__(self, device):
        return self.bindings.backend._made[device]


def install(cards=1, *, backend="native", version="installed", expandable=False):
    """Put the double in place, for good."""
    import torch

    return _install(torch, cards, backend, version, expandable)[0]


@contextmanager
def installed(cards=1, *, backend="native", version="installed", expandable=False):
    """The double is in place within the block."""
    import torch

    modules, cuda_version = layer.loaded_modules(), torch.version.cuda
    found, before = _install(torch, cards, backend, version, expandable)
    try:
        forget()
        yield found
    finally:
        forget()
        for name, value in before.items():
            if value is None:
                if hasattr(torch._C, name):
                    delattr(torch._C, name)
            else:
                setattr(torch._C, name, value)
        torch.version.cuda = cuda_version
        layer.put(torch, modules)


def forget():
    """Have hiwater forget what it knew of libraries: before and after another one is put in place."""
    from hiwater.contrib.torch import cuda_ready
    from hiwater.meters import devices
    from hiwater.scopes.manager import SCOPE_MANAGER

    devices._made.clear()
    devices._names.clear()
    devices._refusals.clear()
    cuda_ready._calls.clear()
    guard = sys.modules.get("hiwater.contrib.torch.oom_guard")
    if guard is not None:
        guard.WATCH.__init__()
    SCOPE_MANAGER._refused.clear()
    for key in [key for key in SCOPE_MANAGER._slots if ":" in key[0]]:
        del SCOPE_MANAGER._slots[key]


def _install(torch, cards, backend, version, expandable):
    folder = layer.folder_of(version)
    if folder is None:
        raise LayerMissing(f"torch {version}: run `python tests/helpers/cuda_double/fetch.py {version}`")
    cards = [Card(number) for number in range(cards)] if isinstance(cards, int) else cards
    refused = torch._C.OutOfMemoryError
    traits = {"expandable": expandable} if backend == "native" else {}

    def make_backend():
        return backends.KINDS[backend](cards, refused, **traits)

    bindings = Bindings(torch, make_backend(), cards, is_old=version != "installed")
    before = {}
    for name, function in bindings.table().items():
        before[name] = getattr(torch._C, name, None)
        setattr(torch._C, name, function)
    if version != "installed":  # what the old one does not have, or calls otherwise
        for name in [name for name in dir(torch._C) if name.startswith("_accelerator_")]:
            before[name] = getattr(torch._C, name)
            delattr(torch._C, name)
        before["_OutOfMemoryError"] = getattr(torch._C, "_OutOfMemoryError", None)
        torch._C._OutOfMemoryError = refused
    torch.version.cuda = "13.0"
    layer.load(torch, folder)
    return Cuda(torch, cards, bindings, make_backend), before
