"""`%mlrun` and `%%mlrun` in IPython, over a simulated allocator."""

import pytest

from cuda_double import installed

torch = pytest.importorskip("torch")
pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell  # noqa: E402 - it may be missing
from IPython.utils.io import capture_output  # noqa: E402 - the same

from hiwater.contrib.compat.pytorch_memlab.lines import ClassicLineProfiler  # noqa: E402 - the same
from hiwater.contrib.torch import LineProfiler  # noqa: E402 - it needs torch

pytestmark = pytest.mark.filterwarnings("ignore")  # IPython's own


@pytest.fixture
def shell(monkeypatch, tmp_path):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    with installed(2) as cuda:
        cuda.initialise(0, 1)
        yield from started(cuda)


def started(cuda):
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.user_ns["cuda"] = cuda
    shell.run_line_magic("load_ext", "hiwater")
    yield shell
    shell.run_line_magic("unload_ext", "hiwater")
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def run(shell, code):
    with capture_output() as captured:
        result = shell.run_cell(code)
    return result.result, result.error_in_exec, captured.stdout


DEFINES = "def func(n):\n    held = cuda[0].malloc(n * 1024)\n    cuda[0].free(held)\n"


def test_a_function_that_the_cell_itself_defines_and_calls(shell):
    shown, error, _ = run(shell, f"%%mlrun -f func -c hits\n{DEFINES}x = {{'a': 1}}\nfunc(4); func(x['a'] + 7)\n")
    assert error is None
    assert repr(shown) == (
        "## func\n\n"
        "active_bytes reserved_bytes hits line  code\n"
        "         all            all\n"
        "        peak           peak\n"
        "         0 B       2.00 MiB    2    1  def func(n):\n"
        "    8.00 KiB       2.00 MiB    2    2      held = cuda[0].malloc(n * 1024)\n"
        "    8.00 KiB       2.00 MiB    2    3      cuda[0].free(held)\n"
    )
    assert shell.user_ns["x"] == {"a": 1}


def test_the_readmes_cell_which_defines_a_function_and_calls_nothing(shell):
    shown, error, _ = run(shell, f"%%mlrun -f func\n{DEFINES}")
    assert error is None and repr(shown) == "No data collected\n"


def test_a_statement_as_it_was_typed_and_columns_alone(shell):
    run(shell, DEFINES)
    shown, error, _ = run(shell, "%mlrun -f func -D -c peak_above_start y = func(2), func(int('3')) or {'b': 2}")
    assert error is None and shell.user_ns["y"] == (None, {"b": 2})
    assert "3.00 KiB    2      held" in repr(shown) and "active_bytes" not in repr(shown)


def test_quiet_shows_nothing_and_the_profiler_comes_back_when_asked_for(shell, tmp_path):
    run(shell, DEFINES)
    assert run(shell, "%mlrun -q -f func func(2)") == (None, None, "")
    profiler, _, _ = run(shell, f"%mlrun --return-profiler -f func -T {tmp_path / 'table.txt'} func(2)")
    assert type(profiler) is LineProfiler
    assert "held = cuda[0].malloc" in (tmp_path / "table.txt").read_text()
    shown, _, _ = run(shell, "%mlrun --gpu 1 --function func func(2)")
    assert "         0 B            0 B    2      held" in repr(shown)


def test_a_function_that_nobody_defines_and_a_wrong_column_are_told_before_and_after(shell):
    run(shell, DEFINES + "ran = []\n")
    _, error, _ = run(shell, "%mlrun -f nothing ran.append(1)")
    assert "Could not find function 'nothing'" in str(error) and shell.user_ns["ran"] == []
    _, error, _ = run(shell, "%%mlrun -f later\nif ran: later = 1")
    assert "the code did not define it" in str(error)
    _, error, _ = run(shell, "%mlrun -f func -c hitz func(1)")
    assert "did you mean hits?" in str(error)
    _, error, _ = run(shell, "%mlrun -g . -f func func(1)")
    assert "names no device" in str(error)


def test_a_cell_that_fails_shows_what_it_came_to(shell):
    run(shell, DEFINES)
    with capture_output() as captured:
        result = shell.run_cell("%%mlrun -f func\nfunc(2)\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert [repr(shown.data["text/plain"]) for shown in captured.outputs if "## func" in shown.data["text/plain"]]


def test_the_drop_ins_extension_writes_its_sizes(shell):
    from hiwater.contrib.compat.pytorch_memlab import mlrun

    mlrun.load_classic(shell)
    run(shell, DEFINES)
    shown, _, _ = run(shell, "%mlrun -f func func(2)")
    assert "2.00K" in repr(shown)
    assert type(run(shell, "%mlrun -r -f func func(2)")[0]) is ClassicLineProfiler
