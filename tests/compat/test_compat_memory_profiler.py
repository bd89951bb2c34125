"""memory_profiler's name and manners: programs written for it run with PYTHONPATH alone changed, and its faults are
gone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from children import run_python
from drop_ins import HIWATER, run, script
from hiwater.contrib.compat.drop_ins import folder

ROW = re.compile(r"^ *(\d+) +(?:([\d.]+) MiB +(-?[\d.]+) MiB +(\d+) )? *(.*)$")


def rows(report: str) -> dict[int, tuple[float, float, int]]:
    found = {}
    for line in report.splitlines():
        match = ROW.match(line)
        if match and match[2]:
            found[int(match[1])] = (float(match[2]), float(match[3]), int(match[4]))
    return found


def test_the_whole_interface_is_there(tmp_path: Path) -> None:
    names = (
        "profile LineProfiler show_results memory_usage TimeStamper LogFile choose_backend load_ipython_extension "
        "CodeMap _get_memory"
    )
    if find_spec("IPython") is not None:
        names += " MemoryProfilerMagics MemitResult"
    code = f"import memory_profiler as m; print([n for n in {names.split()} if not hasattr(m, n)])"
    assert run("-c", code, cwd=tmp_path).stdout == "[]\n"


def test_importing_it_loads_neither_numpy_nor_ipython(tmp_path: Path) -> None:
    code = "import memory_profiler, sys; print([n for n in ('numpy', 'IPython', 'rich', 'psutil') if n in sys.modules])"
    assert run("-c", code, cwd=tmp_path).stdout == "[]\n"


def test_the_report_has_the_classic_layout_and_right_increments(tmp_path: Path) -> None:
    program = script(
        tmp_path / "p.py",
        "from memory_profiler import profile\n@profile\ndef f():\n    a = [0] * 3_000_000\n"
        "    for n in range(3):\n        b = [0] * 2_000_000\n        del b\n    y = 1\n    return a\nf()\n",
    )
    report = run(program, cwd=tmp_path).stdout
    lines = report.splitlines()
    assert lines[0] == f"Filename: {program}"
    assert lines[2] == "Line #    Mem usage    Increment  Occurrences   Line Contents"
    assert lines[3] == "=" * len(lines[2]) and lines[4].endswith("   @profile")
    found = rows(report)
    assert found[4][1] == pytest.approx(22.9, abs=0.6) and found[6][1] > 15 and (found[6][2], found[5][2]) == (3, 4)
    changes = sum(increment for line, (_, increment, _) in found.items() if line != 2)
    assert changes == pytest.approx(found[9][0] - found[2][0], abs=0.5), "what the lines changed is what changed"
    assert abs(found[8][1]) < 0.3, "a line that does nothing is charged with nothing"


def test_the_report_survives_an_exception(tmp_path: Path) -> None:
    program = script(
        tmp_path / "p.py",
        "from memory_profiler import profile\n@profile\ndef f():\n    a = [0] * 3_000_000\n"
        "    raise ValueError('x')\nf()\n",
    )
    done = run(program, cwd=tmp_path, check=False)
    assert done.returncode == 1 and "ValueError: x" in done.stderr and rows(done.stdout)[4][1] > 20


def test_generators_coroutines_and_recursion(tmp_path: Path) -> None:
    program = script(
        tmp_path / "p.py",
        "import asyncio\nfrom memory_profiler import profile\n"
        "@profile\ndef generator():\n    for n in range(3):\n        x = [0] * 1_000_000\n        yield n\n"
        "@profile\nasync def coroutine():\n    x = [0] * 2_000_000\n    await asyncio.sleep(.01)\n    return x\n"
        "@profile\ndef deeper(n):\n    x = [0] * 1_000_000\n    if n:\n        x = [x, deeper(n - 1)]\n    return x\n"
        "@profile\nasync def stream():\n    for n in range(2):\n        x = [0] * 1_000_000\n        yield n\n"
        "async def both(): return await asyncio.gather(coroutine(), coroutine()), [n async for n in stream()]\n"
        "assert list(generator()) == [0, 1, 2]\nasyncio.run(both())\ndeeper(3)\n",
    )
    report = run(program, cwd=tmp_path).stdout
    found = rows(report)
    assert found[6][2] == found[7][2] == 3 and found[3][2] == 1, "a generator's lines count as often as they ran"
    assert found[10][1] > 14 and found[23][2] == 2
    assert report.count("Filename") == 4, "one report for a recursive call"
    assert found[15][1] == pytest.approx(4 * 7.63, abs=1) and abs(found[17][1]) < 1, (
        "what a call adds is in its own lines"
    )


def test_a_trace_function_of_the_programs_own_stays(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom memory_profiler import profile\ntrace = lambda *a: None\nsys.settrace(trace)\n"
        "profile(lambda: 1, stream=sys.stderr)()\nassert sys.gettrace() is trace"
    )
    run("-c", code, cwd=tmp_path)


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    program = script(
        tmp_path / "p.py", "from memory_profiler import profile\n@profile\ndef f(): return 1\nprint(f())\n"
    )
    assert run(program, cwd=tmp_path, HIWATER_PROFILE="0").stdout == "1\n"


@pytest.mark.parametrize("importing", ["", "from memory_profiler import profile\n"])
def test_the_module_runs_a_script_and_reports_once(tmp_path: Path, importing: str) -> None:
    program = script(
        tmp_path / "p.py",
        importing + "import pickle, sys\n@profile\ndef f():\n    return [0] * 3_000_000\nclass C: pass\n"
        "pickle.loads(pickle.dumps(C()))\nf(); f()\nprint(sys.argv[1:], __name__)\nsys.exit(5)\n",
    )
    done = run("-m", "memory_profiler", "--precision", "2", program, "-x", cwd=tmp_path, check=False)
    assert done.returncode == 5 and "['-x'] __main__" in done.stdout
    assert done.stdout.count("Filename") == 1 and re.search(r"\d\.\d\d MiB", done.stdout)


def test_the_modules_options(tmp_path: Path) -> None:
    program = script(tmp_path / "p.py", "@profile\ndef f():\n    return [0] * 1000\nf()\n")
    assert run("-m", "memory_profiler", "-o", "out.txt", program, cwd=tmp_path).stdout == ""
    assert "Line #" in (tmp_path / "out.txt").read_text()
    assert re.match(
        r"FUNC __main__\.f [\d.]+ [\d.]+ [\d.]+ [\d.]+ 0\n",
        run("-m", "memory_profiler", "--timestamp", program, cwd=tmp_path).stdout,
    )
    assert "Line #" in run("-m", "memory_profiler", "--backend", "tracemalloc", program, cwd=tmp_path).stdout
    assert run("-m", "memory_profiler", "-c", "print(6 * 7)", cwd=tmp_path).stdout == "42\n"
    stopped = run("-m", "memory_profiler", "--pdb-mmem", "1", program, cwd=tmp_path, check=False)
    assert "exceeded the maximum of 1.00 MiB" in stopped.stdout
    assert run("-m", "memory_profiler", "no_such.py", cwd=tmp_path, check=False).returncode == 127


def test_the_module_names_the_script_as_it_was_given(tmp_path: Path) -> None:
    text = "import os, other\nos.chdir('/')\n@profile\ndef f():\n    return [0] * 1000\nf()\nprofile(other.g)()\n"
    (tmp_path / "sub").mkdir()
    script(tmp_path / "sub" / "p.py", text)
    other = script(tmp_path / "sub" / "other.py", "def g():\n    return 1\n")
    on_path = os.pathsep.join([str(tmp_path / "sub"), os.environ["PATH"]])
    for given, shown in (
        ("sub/p.py", "sub/p.py"),
        ("./sub/../sub/p.py", "./sub/../sub/p.py"),
        (str(tmp_path / "sub" / "p.py"),) * 2,
        ("p.py", str(tmp_path / "sub" / "p.py")),  # found on PATH
    ):
        report = run("-m", "memory_profiler", given, cwd=tmp_path, PATH=on_path).stdout
        assert re.findall(r"^Filename: (.*)$", report, re.MULTILINE) == [shown, str(other)]
        assert "return [0] * 1000" in report, "the source is found from another folder, too"


@pytest.mark.parametrize("module", ["memory_profiler", "filprofiler"])
def test_the_program_does_not_find_the_modules_words_among_its_own(tmp_path: Path, module: str) -> None:
    script(tmp_path / "p.py", "import sys; print(sys.orig_argv[1:], sys.argv)")
    words = ["run", "p.py", "x"] if module == "filprofiler" else ["p.py", "x"]
    done = run("-Bm", module, *(["--no-browser"] if module == "filprofiler" else []), *words, cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "['-B', 'p.py', 'x'] ['p.py', 'x']"


@pytest.mark.parametrize("option", [[], ["--backend", "psutil_uss"]])
def test_the_debugger_is_entered_in_the_line_that_takes_too_much(tmp_path: Path, option: list[str]) -> None:
    program = script(
        tmp_path / "p.py",
        "@profile\ndef f():\n    small = 1\n    a = [0] * 30_000_000\n    after = 2\n    return len(a)\nprint(f())\n",
    )
    words = [sys.executable, "-m", "memory_profiler", "--pdb-mmem", "150", *option, str(program)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder(), HIWATER])}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, input="p 'small', small\np len(a)\nw\nc\n", capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("exceeded the maximum of 150.00 MiB") == 1
    assert "('small', 1)" in done.stdout and re.search(r"p.py\([56]\)f\(\)", done.stdout)
    assert done.stdout.count("30000000") == 2, "the debugger sees the list, and the program goes on to its end"


def test_each_thread_has_a_report_of_its_own(tmp_path: Path) -> None:
    program = script(
        tmp_path / "p.py",
        "import threading\nfrom memory_profiler import profile\nbarrier = threading.Barrier(3)\n"
        "@profile\ndef f(rounds):\n    barrier.wait()\n    for _ in range(rounds):\n        x = 1\n    barrier.wait()\n"
        "threads = [threading.Thread(target=f, args=(n,)) for n in (10, 20, 30)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\n",
    )
    report = run(program, cwd=tmp_path).stdout
    assert sorted(int(line.split()[5]) for line in report.splitlines() if line.endswith("  x = 1")) == [10, 20, 30]


def test_trace_functions_and_code_that_is_made_twice(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom memory_profiler import LineProfiler, show_results\n"
        "names = [{}, {}]\nfor each in names: exec(compile('def f():\\n    return [1]\\n', __file__, 'exec'), each)\n"
        "p = LineProfiler()\nfor each in names: p.add_function(each['f'])\n"
        "with p:\n    for each in names: each['f']()\n"
        "sys.settrace(p.trace_memory_usage)\nnames[0]['f']()\nsys.settrace(None)\nnames[0]['f']()\n"
        "(name, rows), = p.code_map.items()\nprint({line: row[2] for line, row in rows})\n"
    )
    assert run(script(tmp_path / "p.py", code), cwd=tmp_path).stdout == "{1: 3, 2: 3}\n"


def test_the_tracemalloc_backend_and_children_are_measured_line_by_line(tmp_path: Path) -> None:
    program = script(
        tmp_path / "p.py",
        "import subprocess, sys\nfrom memory_profiler import LineProfiler, profile, show_results\n"
        "@profile(backend='tracemalloc')\ndef f():\n    a = bytearray(5 << 20)\n    return a\nf()\n"
        "def g():\n    code = \"x = b'a' * (60 << 20); print(); input()\"\n"
        "    p = subprocess.Popen([sys.executable, '-c', code], stdin=-1, stdout=-1)\n    p.stdout.readline()\n"
        "    p.communicate(b'\\n')\n"
        "p = LineProfiler(include_children=True)\np(g)()\nshow_results(p)\n",
    )
    found = rows(run(program, cwd=tmp_path).stdout)
    assert found[5][1] == pytest.approx(5, abs=0.1) and found[5][0] < 8, (
        "what Python objects take, not what is resident"
    )
    assert found[11][0] > 60 and found[12][1] < -55


def test_time_stamps(tmp_path: Path) -> None:
    code = (
        "import sys, time, asyncio\nfrom memory_profiler import TimeStamper\nt = TimeStamper('psutil')\n"
        "@t\ndef fails(): raise KeyError\n@t\nasync def waits(): await asyncio.sleep(.1)\n"
        "try: fails()\nexcept KeyError: pass\nasyncio.run(waits())\n"
        "with t.timestamp('a block'): pass\nt.show_results()\nassert t.current_stack_level == -1"
    )
    lines = run("-c", code, cwd=tmp_path).stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["__main__.fails", "__main__.waits", "__main__.a_block"]
    fields = lines[1].split()
    assert float(fields[5]) - float(fields[3]) > 0.09 and {line.split()[6] for line in lines} == {"0"}


def test_line_profiler_as_an_object(tmp_path: Path) -> None:
    code = (
        "import io, logging, sys\nfrom memory_profiler import LineProfiler, LogFile, show_results\n"
        "def f():\n    return [n for n in range(10)]\n"
        "p = LineProfiler()\np.add_function(f)\nassert p.runctx('f()', globals(), {}) is p\n"
        "with p: f()\n(name, rows), = p.code_map.items()\nprint(dict(rows).keys() >= {3, 4}, p.enable_count)\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout, format='%(message)s')\n"
        "LogFile(reportIncrementFlag=True).write('  4  10.0 MiB  0.0 MiB  1  x')\nLogFile('a').write('said\\n')\n"
    )
    assert run(script(tmp_path / "p.py", code), cwd=tmp_path).stdout == "True 0\nsaid\n"


def test_magics(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    code = (
        "from IPython.testing.globalipapp import get_ipython\nip = get_ipython()\n"
        "ip.run_line_magic('load_ext', 'memory_profiler')\n"
        "r = ip.run_line_magic('memit', '-o len([0] * 30_000_000)')\n"
        "assert 228 < r.mem_usage[0] - r.baseline < 232, r\n"
        "ip.run_cell('def f():\\n    x = [0] * 3_000_000\\n    return x')\n"
        "p = ip.run_line_magic('mprun', '-T out.txt -r -f f f()')\nassert 'x = [0]' in open('out.txt').read()\n"
        "r = ip.run_cell_magic('memit', '-o n = 5', 'y = [n] * 100')\nassert ip.user_ns['y'] == [5] * 100\n"
    )
    done = run("-W", "ignore", "-c", code, cwd=tmp_path, IPYTHONDIR=str(tmp_path))
    assert "peak memory:" in done.stdout


def test_the_folder_of_the_drop_in_modules_is_printed() -> None:
    done = run_python("-m", "hiwater.compat", check=True)
    assert sorted(path.name for path in Path(done.stdout.strip()).glob("*.py")) == [
        "__init__.py",
        "ipygpulogger.py",
        "memory_profiler.py",
        "mprof.py",
    ]
