"""GPU figures of notebook cells, in a real kernel, over a simulated allocator."""

import notebooks
from packages import skip_without
from places import HELPERS

skip_without("torch", "ipykernel")

_SETUP = f"""import sys
sys.path.insert(0, {str(HELPERS)!r})
import cuda_double
cuda = cuda_double.install(2)
"""


def test_the_line_after_a_cell_has_each_device_in_use(tmp_path):
    cells = [
        _SETUP + "from hiwater.notebook import CellLogger\nlogger = CellLogger().start()",
        "1",
        "cuda.initialise(0)\ncuda[0].free(cuda[0].malloc(300 << 20))\nheld = cuda[0].malloc(100 << 20)",
        "cuda[0].free(held)",
        "logger.data.gpu, sorted(logger.last.row())[2:6], logger._cells[-2].devices[0].reserved.end_bytes",
    ]
    _, before, made, freed, data = notebooks.run(tmp_path, cells)
    assert "cuda" not in before.lines[0]
    assert "cuda:0: peak +300.0 MiB, kept +100.0 MiB, now 100.0 MiB" in made.lines[0]
    assert "cuda:0: peak 0.0 MiB, kept −100.0 MiB, now 0.0 MiB" in freed.lines[0]
    assert "(Memory(consumed=-104857600, peaked=0, used=0),)" in data.value
    assert str(300 << 20) in data.value  # what the library holds on to


def test_ipygpulogger_has_figures_of_the_gpu(tmp_path):
    cells = [
        _SETUP + "cuda.initialise(0, 1)\nfrom hiwater.contrib.compat.dropin.ipygpulogger import IPyGPULogger\n"
        "il = IPyGPULogger().start()",
        "cuda[0].free(cuda[0].malloc(200 << 20)); cuda[0].malloc(50 << 20)",
        "il.data[3:6], il.data.gpu.used_total",
    ]
    _, cell, data = notebooks.run(tmp_path, cells)
    assert "GPU:       50    150     50 MB" in cell.lines[0]
    assert "(cuda:1)" in cell.lines[0]
    assert data.value == "((50, 150, 50), 50)"
