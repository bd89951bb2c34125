"""What higher packages provide to lower ones, which must not import them: each entry names a module, or an attribute of
one, as text.

An entry is loaded at its first use. `hiwater.contrib` is reached through this table alone.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERBS = {
    "estimate": "hiwater.contrib.torch.cli.estimate",
}
"""The verbs of the command line whose modules are not in `hiwater.cli`."""
MAGICS = (
    "hiwater.contrib.compat.memory_profiler.magics:load_ipython_extension",
    "hiwater.contrib.compat.pytorch_memlab.mlrun:load",
)
"""Functions that register more magics with IPython's shell, which they are given."""
DEVICE_LIBRARIES = {
    "torch": "hiwater.contrib.devices.torch:Torch",
    "jax": "hiwater.contrib.devices.jax:Jax",
}
"""Libraries that hand out memory of devices: those that the program uses are measured by default. None is ever
loaded for it."""
TORCH_HISTORY = "hiwater.contrib.torch.history:TorchHistory"
"""The history of torch's CUDA allocator while a recording runs."""
JAX_PROFILE = "hiwater.contrib.devices.jax:memory_profile"
"""JAX's profile of device memory at the end of a recording, or None."""
HISTORY_READER = "hiwater.device_history.files"
"""A module that reads histories of device memory as contents of captures: `read_all(path)` and `read_attached(...)`."""
COMPARE = "hiwater.analysis.diff:compare_as_recorded"
"""What `Capture.diff` calls."""
HOLDERS = "hiwater.analysis.holders:read_file"
"""What `hiwater.holders()` shows: reads the last search of the capture at a path, `read_file(path, what, limit)`."""
IS_DEVICE_REFUSAL = "hiwater.contrib.torch.oom_message:is_refusal"
"""Whether an exception says that memory of a device was refused."""
REPORT_DEVICE_REFUSAL = "hiwater.contrib.torch.oom_guard:write_report"
"""Writes what was live then."""
DEVICE_REFUSALS = "hiwater.contrib.torch.oom_guard:WATCH"
"""The observer of refusals: `listen()` and `leave()`."""


def load(entry: str) -> Any:
    """The module, or the attribute, that an entry of this table names."""
    # Without importlib: a program that is started finds none loaded that python had not.
    module, _, attribute = entry.partition(":")
    __import__(module)
    return getattr(sys.modules[module], attribute) if attribute else sys.modules[module]
