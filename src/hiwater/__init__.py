"""How much memory did this really use: when, where and why."""

__version__ = "0.1.0"
