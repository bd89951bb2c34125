"""CUDA graphs of a card that is not there: what is captured runs once, where it is written, on the capture's stream.

The changes to torch are permanent, so this runs only in the process of the estimate.
"""

from __future__ import annotations

from typing import Any

import torch

from hiwater.contrib.torch.estimate import unseen


class CardGraph:
    """Stands for `torch.cuda.CUDAGraph`."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        unseen.note_graph()

    def capture_begin(self, *_arguments: Any, **_options: Any) -> None: ...

    def capture_end(self) -> None: ...

    def instantiate(self) -> None: ...

    def replay(self) -> None: ...

    def reset(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return 0, 0


def install() -> None:
    """Let programs find it under torch's name."""
    if not hasattr(torch._C, "_host_emptyCache"):  # builds for the CPU
        torch._C._host_emptyCache = lambda: None
    torch.cuda.CUDAGraph = torch.cuda.graphs.CUDAGraph = CardGraph
