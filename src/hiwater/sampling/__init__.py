"""Timelines: the memory of a process, or of a call in this process, over time.

The part that runs inside the measured program uses only the standard library.
"""

from hiwater.errors import NoSuchProcess, ProcessNotReadable
from hiwater.sampling.usage import memory_usage

__all__ = ["NoSuchProcess", "ProcessNotReadable", "memory_usage"]
