"""The figures of a recording, as `Recorder.summary()` returns them."""

from __future__ import annotations

from typing import Any, TypedDict

from hiwater._os.headline import TopLine


class RefusedRequests(TypedDict):
    """How many requests for memory were refused; the size of the last one, and the line that made it."""

    count: int
    bytes: int
    file: str
    line: int
    function: str


class Summary(TypedDict):
    """The result of a recording. `top_line` is the line to change first, if the program had live bytes.
    `refused` counts the refused requests for memory and describes the last, if there was one. `devices` has
    name, backend, exact and the peaks of each accelerator that was used, −1 if not measured. `shortcomings` are
    what hiwater could not record in this process. `file_fate` says what other programs did to the capture's
    file, "" if nothing. `is_lost` says whether nothing of it can be read."""

    path: str
    peak_bytes: int
    peak_blocks: int
    live_bytes: int
    program_peak_bytes: int
    resident_exact: bool
    resident_error_bytes: int
    overhead_bytes: int
    lost_events: int
    file_fate: str
    is_lost: bool
    shortcomings: dict[str, str]
    sample_bytes: int
    standard_error_bytes: int
    stop_reason: str | None
    top_line: TopLine | None
    refused: RefusedRequests | None
    devices: list[dict[str, Any]]
    device_trouble: str
    driver_trouble: str
