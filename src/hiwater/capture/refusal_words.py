"""The sentence on refused requests for memory, which the end of a run and every report have in the same words."""

from __future__ import annotations

from hiwater._os.sizes import format_size


def refusal_words(count: int, last_bytes: int, place: str) -> str:
    """`count` requests, the last of them for `last_bytes` at `place`, a line with its function."""
    times = "a request for memory was" if count == 1 else f"{count:,} requests for memory were"
    last = "" if count == 1 else "the last "
    return f"{times} refused, {last}of {format_size(last_bytes, 1)} at {place}"
