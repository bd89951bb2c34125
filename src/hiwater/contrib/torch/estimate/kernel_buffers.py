"""What single operators allocate on a card besides their results, while they run.

Softmax's backward multiplies gradient and output first (`softmax_backward_cuda_out` in ATen's native/cuda/SoftMax.cu).
That of an embedding sorts the ids and adds up segments of equal ones (`embedding_dense_backward_cuda` and
`embedding_backward_cuda_kernel` in Embedding.cu and EmbeddingBackwardKernel.cu there). The temporaries of the sort
itself are CUB's, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hiwater.contrib.torch.estimate.hidden import HiddenStorage

_FEW = 3072  # ids: up to here, and unless gradients are scaled by frequency, a kernel that sorts nothing runs
_ROWS_PER_THREAD = 10
_OF_EMBEDDING = torch.ops.aten.embedding_dense_backward.default
_OF_SOFTMAX = torch.ops.aten._softmax_backward_data.default


def buffers(function: Any, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Iterator[HiddenStorage]:
    """The buffers of this operator while it runs."""
    if function is _OF_SOFTMAX:
        yield HiddenStorage(args[0].numel() * args[0].element_size())
    elif function is _OF_EMBEDDING:
        yield from _of_embedding(args)


def _of_embedding(args: tuple[Any, ...]) -> Iterator[HiddenStorage]:
    gradient, ids, rows, _, scales = args[:5]
    count = ids.numel()
    if count <= _FEW and not scales:
        return
    segments = count // _ROWS_PER_THREAD + min(count, rows)
    for _ in ("sorted", "original places", "starts", "partial sums", "their starts"):
        yield HiddenStorage(count * ids.element_size())
    yield HiddenStorage(segments * ids.element_size())
    yield HiddenStorage(segments * gradient.shape[-1] * max(4, gradient.element_size()))
