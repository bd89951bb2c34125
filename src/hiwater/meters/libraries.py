"""The names of the libraries whose device memory can be measured. hiwater checks whether they are loaded and never loads them."""

from __future__ import annotations

ALLOCATORS = ("torch", "jax", "cupy", "tensorflow", "rmm")
"""Libraries that allocate device memory. By default, hiwater measures those that the program has loaded."""
