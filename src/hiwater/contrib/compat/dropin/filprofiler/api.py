"""`filprofiler.api`."""

from __future__ import annotations

from hiwater.contrib.compat.fil.api import profile

__all__ = ["profile"]
