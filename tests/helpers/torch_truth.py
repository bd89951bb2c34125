"""What torch's CPU allocator says, by the profiler's own record of each allocation and free: knows nothing of
hiwater."""

import json
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.profiler import ProfilerActivity, profile


class Allocated:
    """`bytes`: allocated and not freed while the block ran, set at its end."""

    bytes = 0


@contextmanager
def allocated_by_cpu():
    found = Allocated()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        yield found
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recording.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    found.bytes = sum(
        event["args"]["Bytes"]
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == 0
    )
