"""Turns what user code raises on fake tensors into errors that name the line and the way out."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses import fake_tensor

from hiwater.contrib.torch.estimate import unseen
from hiwater.contrib.torch.estimate.trace import LIBRARIES
from hiwater.errors import HiwaterError, StepFailed, StepNeedsValues

_VALUE_ERRORS = tuple(
    getattr(fake_tensor, name)
    for name in ("DataDependentOutputException", "DynamicOutputShapeException")
    if hasattr(fake_tensor, name)
)
_NOT_THE_USERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_KNOWN: dict[str, tuple[type[HiwaterError], str, str]] = {  # words -> kind, what the line does, a way out
    "numpy() is not supported for tensor subclasses": (
        StepNeedsValues,
        "reads a tensor's values as NumPy, but an estimate knows only sizes",
        "keep it out of the step that you hand over",
    ),
    "self.shape_env must not be None": (
        StepFailed,
        "uses nested tensors, whose sizes are values",
        "hand over a padded batch of as many elements, or packed ones with torch.nn.attention.varlen",
    ),
    "FlexAttention does not support backward on CPU": (
        StepFailed,
        "trains through flex_attention, whose kernels are made on a card",
        "use scaled_dot_product_attention for the estimate, which keeps about the same",
    ),
    "Cannot access accelerator device when none is available": (
        StepFailed,
        "gives a device by its number, which a torch that was built without CUDA refuses in a step",
        'write "cuda" or the device of a tensor there, or install a torch that was built for CUDA: it needs no card',
    ),
    "`fused=True` requires": (
        StepFailed,
        f"uses a fused optimizer, which this torch ({torch.__version__}) has only on a card",
        "leave fused out for the estimate, which is then too high by foreach's temporaries, or use a newer torch",
    ),
    **dict.fromkeys(
        ("FSDP does not support CPU only execution", "FSDP needs a non-CPU accelerator"),
        (
            StepFailed,
            "uses FullyShardedDataParallel, the first FSDP, which needs a card",
            "use torch.distributed.fsdp.fully_shard, which takes about the same memory",
        ),
    ),
}
_READS = {
    "aten._local_scalar_dense.default": "reads a tensor's value (.item(), float(), bool(), if, print)",
    "aten.nonzero.default": "makes a tensor whose size depends on values (nonzero, a mask as index)",
}


@contextmanager
def explained(is_import: bool = False) -> Iterator[None]:
    """Errors of hiwater's pass; others become StepNeedsValues or StepFailed."""
    try:
        yield
    except HiwaterError:
        raise
    except _VALUE_ERRORS as error:
        operator = str(getattr(error, "func", error))
        raise StepNeedsValues(
            f"{_line(error)} {_READS.get(operator, f'needs values ({operator})')}, but an estimate knows only sizes",
            "keep it out of the step that you hand over (log outside of it), or replace it by a constant of the"
            " expected size",
        ) from error
    except (Exception, SystemExit) as error:
        stack = getattr(error, "real_stack", None)
        if stack and hasattr(error, "gb_type"):  # of dynamo, which has to split
            raise StepFailed(
                f"{unseen.line_in(stack)} does not fit into the one graph of torch.compile(fullgraph=True):"
                f" {error.gb_type}",
                "take the line out of what is compiled, or leave fullgraph out: dynamo then splits there",
            ) from error
        known = next((found for words, found in _KNOWN.items() if words in str(error)), None)
        if known is not None:
            kind, what, remedy = known
            raise kind(f"{_line(error)} {what}", remedy) from error
        what = "importing it" if is_import else "the step"
        message = " ".join(str(error).split())[:300]
        raise StepFailed(
            f"{what} failed at {_line(error)} with {type(error).__name__}{': ' + message if message else ''}",
            "run it on the CPU, where it has to work, too; in an estimate, tensors have no values, and say that their"
            " device is the CPU",
        ) from error


def _line(error: BaseException) -> str:
    """The innermost line of the user's, and of a library that it calls, or the innermost of all."""
    frames = list(traceback.extract_tb(error.__traceback__))
    outside = [frame for frame in frames if not frame.filename.startswith(("<frozen", *_NOT_THE_USERS))] or frames
    own = [frame for frame in outside if not frame.filename.startswith(LIBRARIES)] or outside
    lines = dict.fromkeys(f"{found[-1].filename}:{found[-1].lineno}" for found in (own, outside) if found)
    return ", in ".join(lines) or "an unknown line"
