"""Timelines: what a process, or a call in this one, uses over time.

What runs inside the watched program uses the standard library alone.
"""

from hiwater.sampling.procfs import NoSuchProcess, ProcessNotReadable
from hiwater.sampling.usage import memory_usage

__all__ = ["NoSuchProcess", "ProcessNotReadable", "memory_usage"]
