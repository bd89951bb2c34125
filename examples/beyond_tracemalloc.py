"""A list, a NumPy array and a torch tensor of the same hundred million numbers: why one tool says 763 MiB and another
1526.

The four cases are those of the article "Beyond tracemalloc". It found 1526 MB allocated but 763 MB resident for NumPy,
took the difference for NumPy's overhead, and 1145 MB for torch, taken for mirroring. Both are arrays that can be named:
each case prints what was allocated and what was resident side by side, and which arrays they are.

    python examples/beyond_tracemalloc.py [samples] [list|np|torch_cpu|torch_gpu ...]

The default is a tenth of the article's 100,000,000 samples. docs/beyond-tracemalloc.md goes through the output.
"""

from __future__ import annotations

import importlib
import sys

import hiwater
from hiwater._os.sizes import format_size

CASES = ("list", "np", "torch_cpu", "torch_gpu")
WHY = {
    "list": "one list of {n} pointers, 8 bytes each, all written: allocated and resident agree. The float is one and "
    "the same object.",
    "np": "two arrays of {n} float64: zeros() asks for pages and writes none of them, so only the copy that astype() "
    "makes is resident.",
    "torch_cpu": "two tensors: ones() is float32 and written, to(float64) is twice as large: both are resident until "
    "the first is dropped.",
    "torch_gpu": "the same two tensors on the CPU, and then the float64 one on the GPU: nothing is mirrored.",
}


def make(case: str, samples: int) -> object:
    """Make what the article made."""
    if case == "list":
        return [0.0] * samples
    if case == "np":
        import numpy as np

        return np.zeros((samples, 1)).astype("float64")
    import torch

    tensor = torch.ones(samples, 1).to(torch.float64)
    return tensor.cuda() if case == "torch_gpu" else tensor


def warm_up(case: str) -> None:
    """Import what the case needs, so that loading a library is not charged to its first array. Raises ImportError."""
    if case == "np":
        importlib.import_module("numpy")
    if case.startswith("torch"):
        torch = importlib.import_module("torch")
        if case == "torch_gpu":
            if not torch.cuda.is_available():
                raise ImportError("torch sees no GPU here")
            torch.zeros(1).cuda()


def show(case: str, samples: int) -> None:
    warm_up(case)
    with hiwater.track(case) as t:
        made = make(case, samples)
    print(t)
    print(f"why: {WHY[case].format(n=f'{samples:,}')}")
    print(f"one array of that size is {format_size(samples * 8)}")
    if case == "torch_gpu":
        import torch

        print(f"on the GPU, by torch's own count: {format_size(torch.cuda.max_memory_allocated())}")
    blocks = [block for block in t.usage.breakdown.large if block.bytes > samples]
    for block in blocks:
        print(
            f"still there: {format_size(block.bytes)}, "
            f"of which touched {format_size(block.touched_bytes)} ({block.kind})"
        )
    del made


def main() -> None:
    words = sys.argv[1:]
    samples = int(float(words.pop(0))) if words and words[0][0].isdigit() else 10_000_000
    for case in words or CASES:
        print(f"--- {case}")
        try:
            show(case, samples)
        except ImportError as error:
            print(f"left out: {error}")
        print()


if __name__ == "__main__":
    main()
