"""`pytorch_memlab.utils`."""

from __future__ import annotations

from hiwater.contrib.compat.pytorch_memlab.report import classic_size


def readable_size(num_bytes: float) -> str:
    """Bytes as pytorch_memlab writes them: `4.00M`; nothing for what is no number."""
    return "" if num_bytes != num_bytes else classic_size(int(num_bytes))  # noqa: PLR0124 - NaN is the one that is not itself
