"""`Trainer(callbacks=[hiwater.contrib.torch.trainers.lightning.MemoryCallback()])`, for `lightning.pytorch`."""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback

from hiwater.contrib.torch.trainers.lightning_hooks import MemoryHooks


class MemoryCallback(MemoryHooks, Callback):  # type: ignore[misc]  # Lightning is not looked into: it is not installed everywhere
    """Logs memory of each phase: see `hiwater.contrib.torch.trainers.lightning_hooks.MemoryHooks`."""
