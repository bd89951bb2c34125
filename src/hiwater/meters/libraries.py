"""The libraries whose device memory can be measured, by name: looking for them loads none."""

from __future__ import annotations

ALLOCATORS = ("torch", "jax", "cupy", "tensorflow", "rmm")
"""Libraries that hand out memory of devices: those that the program uses are measured by default, too. None is ever loaded for it."""
