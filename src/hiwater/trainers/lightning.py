"""`Trainer(callbacks=[hiwater.trainers.lightning.MemoryCallback()])`, for `lightning.pytorch`."""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback

from hiwater.trainers.lightning_hooks import MemoryHooks


class MemoryCallback(MemoryHooks, Callback):  # type: ignore[misc]  # Lightning is not looked into: it is not installed everywhere
    """Logs memory of each phase: see `hiwater.trainers.lightning_hooks.MemoryHooks`."""
