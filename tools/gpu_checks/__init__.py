"""Checks and measurements of what hiwater does with a GPU. `on_a_gpu.py` runs them all, `python tools/gpu_checks NAME
RESULT` runs one.

Over the simulated `torch._C` of `tests/helpers/cuda_double` (`--double`) they show that they work; what needs a card is
left out.
"""

# The order is that of their worth: it is the order in which they run.
from gpu_checks import (  # noqa: F401, I001 - imported to register their checks
    beginnings,
    peaks,
    terms,
    history,
    page,
    refusals,
    tensors,
    notebook,
    estimates,
    libraries,
)
from gpu_checks.registry import CHECKS

__all__ = ["CHECKS"]
