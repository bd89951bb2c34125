"""The names of signals."""

from __future__ import annotations


def signal_name(number: int) -> str:
    """SIGTERM for 15; "signal 40" for a number without a name of its own."""
    import signal  # not before it is needed: this is also imported in the recorded program

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
