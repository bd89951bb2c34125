"""The process that `hiwater run` starts to write its last lines: the first lines of the report on all processes of
the run."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from hiwater.cli.messages import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hiwater.recording.figures import Summary
    from hiwater.report.request import Report

_LONGEST_SECONDS = 9
"""The program gives up a second later."""


def main(capture: str, answer: int) -> None:
    """Write the lines about the run whose first capture is `capture`. A byte into the descriptor `answer` then says
    so, if anybody waits for it."""
    signal.alarm(_LONGEST_SECONDS)
    os.closerange(3, answer)  # the program's
    os.closerange(answer + 1, 1 << 16)
    _yield_to_the_program()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for line in _lines(capture):
        say(line)
    with suppress(OSError):  # the program was killed meanwhile
        os.write(answer, b"1")


def _yield_to_the_program() -> None:
    """Where memory runs out, the kernel ends this process and none of the program's."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
            file.write("1000")
    except OSError:
        return


def _lines(capture: str) -> list[str]:
    from hiwater.capture import open_run
    from hiwater.recording import last_lines
    from hiwater.report.request import Report
    from hiwater.report.text import processes

    run, here = open_run(capture), _current_folder()
    reports = [Report(one, "peak", run=run, is_one_of_several=run.is_of_several) for one in run.captures]
    if run.is_of_several:
        lines = [text for text, _ in processes.first_lines(reports, run, here)]
    else:
        lines = [reports[0].ending_words, *last_lines.figure_lines(summary_of(reports[0]))]
    return [*lines, last_lines.capture_line(last_lines.from_here(capture))]


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was removed: paths stay as they are


def summary_of(report: Report) -> Summary:
    """What the recorder of a process would have said, from its capture."""
    from hiwater.analysis.user_lines import rank_lines
    from hiwater.report.text import limits

    capture, peak = report.capture, report.capture.peak
    ranking = rank_lines(capture.tables, peak.holdings())
    resident, refused = capture.resident, capture.refusals
    last = limits.line_of(report, refused[-1]) if refused else None
    return {
        "path": str(capture.path), "peak_bytes": peak.allocated_bytes, "peak_blocks": peak.allocated_blocks,
        "live_bytes": capture.end_bytes, "program_peak_bytes": resident.program_peak_bytes,
        "resident_exact": resident.exact, "resident_error_bytes": resident.error_bytes,
        "overhead_bytes": resident.overhead_bytes, "lost_events": capture.lost_events, "file_fate": "",
        "is_lost": False, "shortcomings": {"calls_not_recorded": ""} if capture.misses_calls else {},
        "sample_bytes": capture.process.sample_bytes, "standard_error_bytes": peak.standard_error_bytes,
        "stop_reason": capture.process.stop_reason, "top_line": ranking.top_line,
        "refused": None if last is None else {
            "count": len(refused), "bytes": refused[-1].value, "file": last.file, "line": last.line,
            "function": last.function,
        },
        "devices": [
            {
                "name": device.name, "exact": device.exact,
                **{f"peak_{name}_bytes": -1 if size is None else size for name in ("allocated", "reserved", "used")
                   for size in [getattr(device, f"peak_{name}_bytes")]},
            }
            for device in capture.devices
        ],
        "device_trouble": "", "driver_trouble": "",
    }  # fmt: skip
