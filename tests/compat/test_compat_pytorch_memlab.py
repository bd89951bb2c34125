"""The drop-in `pytorch_memlab`: its README's examples over a simulated allocator with torch's real Python layer,
imported by its own name."""

import gc
import importlib
import io
import sys
import textwrap
import weakref

import pytest

import hiwater
from children import run_python
from cuda_double import installed
from hiwater.contrib.compat import drop_ins
from recording import child_environment

torch = pytest.importorskip("torch")

from hiwater.contrib.torch import line_decorators  # noqa: E402 - it needs torch


@pytest.fixture
def cuda(monkeypatch):
    """Modules and tensors that are moved `.cuda()` take memory of the double's until they die."""
    monkeypatch.setattr(line_decorators, "_global", None)

    def take(tensor, index):
        double.initialise(0, 1)
        weakref.finalize(tensor, double[index].free, double[index].malloc(tensor.nbytes))

    def move(module, device=0):
        for parameter in module.parameters():
            take(parameter, getattr(device, "index", device))
        return module

    monkeypatch.setattr(torch.nn.Module, "cuda", move)
    with installed(2) as double:
        yield double
        gc.collect()


@pytest.fixture
def memlab(monkeypatch):
    monkeypatch.syspath_prepend(drop_ins.folder())
    monkeypatch.setattr(line_decorators, "_kind", line_decorators._kind)
    # Importing it chooses its kind.
    monkeypatch.delitem(sys.modules, "hiwater.contrib.compat.pytorch_memlab.lines", raising=False)
    yield importlib.import_module("pytorch_memlab")
    for name in [name for name in sys.modules if name.partition(".")[0] == "pytorch_memlab"]:
        del sys.modules[name]


def test_the_line_profilers_example(cuda, memlab):
    def inner():
        torch.nn.Linear(100, 100).cuda()

    def outer():
        linear = torch.nn.Linear(100, 100).cuda()
        linear2 = torch.nn.Linear(100, 100).cuda()
        inner()
        return linear, linear2

    with memlab.LineProfiler(outer, inner) as prof:
        outer()
    first, inside = outer.__code__.co_firstlineno, inner.__code__.co_firstlineno
    here = "test_the_line_profilers_example.<locals>"
    expected = textwrap.dedent(f"""\
        ## {here}.outer

        active_bytes reserved_bytes line  code
                 all            all
                peak           peak
               0.00B          0.00B {first:>4}      def outer():
              40.00K          2.00M {first + 1:>4}          linear = torch.nn.Linear(100, 100).cuda()
              80.00K          2.00M {first + 2:>4}          linear2 = torch.nn.Linear(100, 100).cuda()
             120.00K          2.00M {first + 3:>4}          inner()
              80.00K          2.00M {first + 4:>4}          return linear, linear2


        ## {here}.inner

        active_bytes reserved_bytes line  code
                 all            all
                peak           peak
              80.00K          2.00M {inside:>4}      def inner():
             120.00K          2.00M {inside + 1:>4}          torch.nn.Linear(100, 100).cuda()
        """)
    assert repr(prof.display()) == expected
    stream = io.StringIO()
    prof.print_stats(outer, stream=stream)
    assert stream.getvalue() == expected.partition("\n\n\n")[0] + "\n"
    assert "linear-gradient" in prof.display()._repr_html_()


def test_the_example_that_switches_devices(cuda, memlab, monkeypatch, capsys):
    at_exit = []
    monkeypatch.setattr(line_decorators.atexit, "register", at_exit.append)

    @memlab.profile
    def func():
        net1 = torch.nn.Linear(1024, 1024).cuda(0)
        memlab.set_target_gpu(1)
        net2 = torch.nn.Linear(1024, 1024).cuda(1)
        memlab.set_target_gpu(0)
        net3 = torch.nn.Linear(1024, 1024).cuda(0)
        return net1, net2, net3

    func()
    at_exit[0]()
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if ".cuda(" in line]
    assert [row[:2] for row in rows] == [["4.00M", "22.00M"], ["4.00M", "22.00M"], ["8.01M", "22.00M"]]
    line_decorators.global_line_profiler().close()


def test_profile_every_prints_sizes_as_it_did(cuda, memlab, capsys):
    @memlab.profile_every(1)
    def work():
        return torch.nn.Linear(100, 100).cuda()

    held = work()
    printed = capsys.readouterr().out
    assert "40.00K" in printed and held is not None
    memlab.clear_global_line_profiler()
    assert repr(line_decorators.global_line_profiler().display(work)) == "No data collected\n"
    line_decorators.global_line_profiler().close()


def test_the_reporters_and_courtesys_names_do_what_they_did(memlab, capsys):
    linear = torch.nn.Linear(1024, 1024)
    memlab.MemReporter(linear).report(device=torch.device("cpu"))
    printed = capsys.readouterr().out
    assert "Element type                                            Size  Used MEM" in printed
    assert "weight                                          (1024, 1024)     4.00M" in printed
    courtesy = memlab.Courtesy()
    before = linear.weight.sum().item()
    courtesy.yield_memory()
    courtesy.restore()
    assert linear.weight.sum().item() == before


def test_all_that_users_import_is_there(memlab):
    public = {
        "Courtesy", "LineProfiler", "MemReporter", "clear_global_line_profiler", "load_ipython_extension", "profile",
        "profile_every", "set_target_gpu",
    }  # fmt: skip
    assert public <= set(vars(memlab))
    from pytorch_memlab.courtesy import Courtesy
    from pytorch_memlab.line_profiler import DEFAULT_COLUMNS, LineProfiler, profile
    from pytorch_memlab.mem_reporter import MemReporter
    from pytorch_memlab.utils import readable_size

    assert (Courtesy, LineProfiler, MemReporter) == (memlab.Courtesy, memlab.LineProfiler, memlab.MemReporter)
    assert profile is memlab.profile and DEFAULT_COLUMNS == ("active_bytes.all.peak", "reserved_bytes.all.peak")
    assert [readable_size(size) for size in (512, 4 << 20, float("nan"))] == ["512.00B", "4.00M", ""]
    assert issubclass(memlab.LineProfiler, hiwater.contrib.torch.LineProfiler)


def test_importing_it_prints_nothing_and_changes_nothing():
    code = (
        "import sys, threading, torch\n"
        "before = torch._C._cuda_memoryStats if hasattr(torch._C, '_cuda_memoryStats') else None\n"
        "import pytorch_memlab\nassert sys.gettrace() is None and threading.gettrace() is None\n"
        "assert getattr(torch._C, '_cuda_memoryStats', None) is before and not torch.cuda.is_initialized()\n"
        "assert pytorch_memlab.__file__.startswith(sys.argv[1])\n"
        "@pytorch_memlab.profile\ndef work(): return 1\nassert work() == 1\n"
    )
    env = child_environment() | {"PYTHONPATH": f"{drop_ins.folder()}:{child_environment().get('PYTHONPATH', '')}"}
    ran = run_python("-W", "error", "-c", code, drop_ins.folder(), env=env)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("No data collected: torch") and ran.stdout.count("\n") == 1
