"""`filprofiler.api`."""

from __future__ import annotations

from hiwater.classic.fil_api import profile

__all__ = ["profile"]
