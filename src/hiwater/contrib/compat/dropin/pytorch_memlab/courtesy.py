"""`pytorch_memlab.courtesy`."""

from __future__ import annotations

from hiwater.contrib.torch.courtesy import Courtesy

__all__ = ["Courtesy"]
