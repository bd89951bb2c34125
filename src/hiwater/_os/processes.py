"""Other processes: what the kernel's files tell of them, or psutil where there are none."""

from hiwater._os import portable

TYPE_CHECKING = False
if TYPE_CHECKING or portable.HAS_PROC:
    from hiwater._os.process_identity import start_ticks_of
    from hiwater._os.procfs import (
        ProcessMemory,
        ProportionalMemory,
        children_of,
        command_of,
        descendants_of,
        name_of,
        open_target,
        parent_of,
        proportional_bytes,
        resident_bytes_of,
        state_of,
    )
else:
    from hiwater._os.processes_elsewhere import (
        PsutilMemory as ProcessMemory,
    )
    from hiwater._os.processes_elsewhere import (
        PsutilProportionalMemory as ProportionalMemory,
    )
    from hiwater._os.processes_elsewhere import (
        children_of,
        command_of,
        descendants_of,
        name_of,
        open_target,
        parent_of,
        proportional_bytes,
        resident_bytes_of,
        start_ticks_of,
        state_of,
    )

__all__ = [
    "ProcessMemory",
    "ProportionalMemory",
    "children_of",
    "command_of",
    "descendants_of",
    "name_of",
    "open_target",
    "parent_of",
    "proportional_bytes",
    "resident_bytes_of",
    "start_ticks_of",
    "state_of",
]
