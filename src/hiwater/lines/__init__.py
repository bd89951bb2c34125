"""Line by line: what each line of chosen functions did to memory.

    profiler = LineProfiler([load, parse])
    with profiler:
        main()
    for function in profiler.results():
        for line in function.lines:
            print(function.file, line.line, line.calls, line.kept_bytes, line.peak_bytes)

Runs inside the profiled program: the standard library and the native engine only. Where there is no engine, lines are
recorded in Python, and their figures are of resident memory alone.
"""

from hiwater.lines.figures import FunctionLines, LineFigures
from hiwater.lines.profiler import LineProfiler

__all__ = ["FunctionLines", "LineFigures", "LineProfiler"]
