"""Other libraries on a card, and several processes on one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from gpu_checks.registry import IN_PLACE, MIB, Result, check, hiwater, program


@check("JAX: a scope's figures, and the profile of device memory in a recording", needs_card=True, seconds=60)
def jax(folder: Path) -> Result:
    """Its allocator would take three quarters of the card at once."""
    import os

    if find_spec("jax") is None:
        return Result(None, {"not installed": "jax"})
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    from hiwater import open as open_capture
    from hiwater import record, track

    if jax.default_backend() == "cpu":
        return Result(None, {"devices": str(jax.devices())})
    with record(folder / "jax.hiw"):
        kept = jax.numpy.zeros(1024).block_until_ready()
        with track() as scope:
            more = jax.numpy.zeros((8 * MIB,), dtype=jax.numpy.uint8).block_until_ready()
    (device,) = [device for device in scope.usage.gpu if device.backend == "jax"]
    histories = [one.device for one in open_capture(folder / "jax.hiw").device_histories]
    del kept, more
    figures = {
        "kept": device.kept_bytes,
        "peak": device.peak_above_start_bytes,
        "exact": device.exact,
        "histories": histories,
    }
    return Result(device.kept_bytes >= 8 * MIB and bool(histories), figures)


_TWO = f"""import subprocess, sys, time, torch
held = torch.cuda.caching_allocator_alloc(len(sys.argv) * {100 * MIB}, stream=0)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"], check=True)
time.sleep(2)
"""


@check("two processes on one card: each has its own figures in the report of the run", seconds=60, in_programs=True)
def processes(folder: Path) -> Result:
    """The parent holds 100 MiB, its child 200 MiB."""
    from hiwater import open as open_capture

    hiwater("run", "-q", "-o", "two.hiw", program(folder, "two", _TWO), folder=folder)
    captures = [folder / "two.hiw", *sorted(folder.glob("two.hiw.*/*.hiw"))]
    peaks = sorted(device.peak_allocated_bytes or 0 for path in captures for device in open_capture(path).devices)
    used = [device.peak_used_bytes for path in captures for device in open_capture(path).devices]
    return Result(peaks == [100 * MIB, 200 * MIB], {"peaks": peaks, "by the driver": used, "double": bool(IN_PLACE)})
