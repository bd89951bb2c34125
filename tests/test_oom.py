"""Refused memory: messages of every version, the verdict on known situations, and reports made for real on the CPU."""

import json
import pickle
import subprocess
import sys

import pytest

import hiwater
from hiwater.cli import main
from hiwater.history.state import AllocatorState, of_segments
from hiwater.torch import oom_message
from hiwater.torch.oom_report import by_stack
from hiwater.torch.oom_verdict import Facts, judge
from recording import needs_engine
from snapshot_double import Allocator, Refused, frame
from test_history_recording import Cuda

torch = pytest.importorskip("torch")

from hiwater.torch import walk  # noqa: E402 - after torch is known to be there

MIB, GIB = 1 << 20, 1 << 30
STACK = (frame("forward", 7), frame("main", 3))

TORCH_2_5 = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 79.11 GiB of which 17.00 MiB is free. Process 4711 has "
    "1.50 GiB memory in use. Including non-PyTorch memory, this process has 77.50 GiB memory in use. Of the allocated memory 70.00 GiB is "
    "allocated by PyTorch, with 1.20 GiB allocated in private pools (e.g., CUDA Graphs), and 5.50 GiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
TORCH_1 = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity; 14.38 GiB already allocated; 92.75 MiB free; "
    "14.64 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb"
)
TORCH_2_1 = (
    "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacty of 23.69 GiB of which 0 bytes is free. 8.00 GiB allowed; "
    "Of the allocated memory 7.9 GiB is allocated by PyTorch, and 10.25 MiB is reserved by PyTorch but unallocated."
)


def test_messages_of_torch_2():
    found = oom_message.parse(TORCH_2_5)
    assert (found.device, found.requested_bytes, found.free_bytes) == (1, 20 * MIB, 17 * MIB)
    assert (found.total_bytes, found.allocated_bytes) == (round(79.11 * GIB), 70 * GIB)
    assert (found.private_pools_bytes, found.unallocated_bytes) == (round(1.2 * GIB), round(5.5 * GIB))
    assert found.process_bytes == round(77.5 * GIB) and found.other_processes == {4711: round(1.5 * GIB)}
    found = oom_message.parse(TORCH_2_1)
    assert (found.requested_bytes, found.total_bytes, found.free_bytes) == (512, round(23.69 * GIB), 0)
    assert found.allowed_bytes == 8 * GIB and found.unallocated_bytes == round(10.25 * MIB)


def test_messages_of_torch_1_and_of_the_cpu():
    found = oom_message.parse(TORCH_1)
    assert (found.requested_bytes, found.total_bytes, found.free_bytes) == (
        2 * GIB,
        round(15.78 * GIB),
        round(92.75 * MIB),
    )
    assert (found.allocated_bytes, found.reserved_bytes) == (round(14.38 * GIB), round(14.64 * GIB))
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 52)
    found = oom_message.parse(str(error.value))
    assert found.is_cpu and found.requested_bytes == 4 << 52 and oom_message.is_refusal(error.value)


@pytest.mark.parametrize(
    "text",
    ["", "Tried to allocate", "Tried to allocate -1 MiB", "x" * 100_000, "GPU 99999999 Tried to allocate 9e9 GiB"],
)
def test_other_messages_say_nothing_and_do_no_harm(text):
    assert oom_message.parse(text).requested_bytes is None


def test_which_errors_are_refusals():
    assert oom_message.is_refusal(torch.cuda.OutOfMemoryError("CUDA out of memory."))
    assert oom_message.is_refusal(RuntimeError("CUDA error: out of memory"))
    assert oom_message.is_refusal(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)")
    )
    for other in (
        None,
        ValueError("out of memory"),
        RuntimeError("shape mismatch"),
        KeyboardInterrupt(),
        MemoryError(),
    ):
        assert not oom_message.is_refusal(other)


# The verdict


def fragmented():
    """Every second of the blocks that fill two segments is free: 20 MiB in pieces of 2."""
    allocator = Allocator(capacity=40 * MIB)
    blocks = [allocator.alloc(2 * MIB, STACK) for _ in range(20)]
    for address in blocks[::2]:
        allocator.free(address)
    with pytest.raises(Refused):
        allocator.alloc(9 * MIB, STACK)
    return allocator


def test_free_memory_in_pieces_is_fragmentation():
    state = of_segments(fragmented().snapshot()["segments"])
    found = judge(Facts(requested_bytes=9 * MIB, state=state, driver_free_bytes=0, total_bytes=40 * MIB))
    assert found.kind == "fragmentation" and "20.0 MiB free, 2.00 MiB in its largest block" in found.why
    assert "expandable_segments:True" in found.advice[0]
    state.expandable_segments = 3
    assert not any("expandable_segments" in one for one in judge(Facts(9 * MIB, state, 0)).advice)


def test_too_little_in_all_is_a_shortage_whose_advice_follows_the_tensors():
    state = AllocatorState(
        reserved_bytes=30 * GIB, requested_bytes=29 * GIB, inactive_split_bytes=GIB, largest_free_bytes=GIB
    )
    found = judge(
        Facts(8 * GIB, state, 2 * GIB, 32 * GIB, saved_bytes=20 * GIB, optimizer_bytes=GIB, gradient_bytes=9 * GIB)
    )
    assert found.kind == "shortage" and "not enough" in found.why
    assert "20.0 GiB are kept by autograd" in found.advice[0] and "9.00 GiB are gradients" in found.advice[1]
    assert len(found.advice) == 2 and "expandable" not in str(found.advice)


def test_what_others_hold_and_limits_are_named():
    state = AllocatorState(reserved_bytes=GIB, requested_bytes=GIB, private_pools={"0.1": GIB}, private_free_bytes=0)
    found = judge(Facts(2 * GIB, state, GIB, 24 * GIB, others_bytes=21 * GIB))
    assert found.kind == "shortage" and any("other processes hold 21.0 GiB" in one for one in found.advice)
    found = judge(Facts(2 * GIB, state, 20 * GIB, 24 * GIB, allowed_bytes=2 * GIB))
    assert found.kind == "limit" and "2.00 GiB" in found.why and "raise the limit" in found.advice[0]
    state.private_free_bytes = GIB // 2
    state.inactive_split_bytes = GIB // 2
    assert any("private pools" in one for one in judge(Facts(2 * GIB, state, 0, 24 * GIB)).advice)


def test_without_figures_there_is_no_verdict():
    assert judge(Facts(None)).kind == "unknown" == judge(Facts(GIB)).kind


# Reports


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda(monkeypatch)
    made.observers = []
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", made.observers.append, raising=False)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda *_, **__: made.allocator.snapshot()["segments"])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index == 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", lambda _: {}, raising=False)
    monkeypatch.setattr("hiwater.torch.oom_guard.WATCH", type(sys.modules["hiwater.torch.oom_guard"].WATCH)())
    monkeypatch.setattr("hiwater.meters.devices.reconcile.card_of", lambda *_, **__: None)
    return made


def run_out(cuda):
    """Do what torch does: the observer first, then the exception; on its way something is let go of."""
    kept = [cuda.allocator.alloc(2 * MIB, STACK) for _ in range(20)]
    for address in kept[::2]:
        cuda.allocator.free(address)
    try:
        cuda.allocator.alloc(9 * MIB, STACK)
    except Refused:
        for observer in cuda.observers:
            observer(0, 9 * MIB, 40 * MIB, 0)
    for address in kept[1::2]:
        cuda.allocator.free(address)
    raise torch.cuda.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 9.00 MiB. GPU 0 has a total capacity of 40.00 MiB of which 0 bytes is free."
    )


import hiwater.torch.oom_guard  # noqa: E402 - after importorskip


def test_blocks_of_equal_stacks_are_one_entry():
    def held(size):
        block = {
            "size": size,
            "requested_size": size,
            "state": "active_allocated",
            "frames": [frame("leaf", 7), frame("main", 3)],
        }
        return {"address": 0, "blocks": [block, {"size": 512, "state": "inactive"}]}

    (entry,) = by_stack([held(MIB), held(2 * MIB)])
    assert (entry["bytes"], entry["blocks"]) == (3 * MIB, 2)
    assert [one["function"] for one in entry["frames"]] == ["main", "leaf"]


def test_a_guard_tells_of_the_very_moment_and_lets_the_exception_go_on(cuda, tmp_path, capsys):
    cuda.allocator.capacity = 40 * MIB
    cuda.initialise()
    torch.cuda.memory._record_memory_history(max_entries=1000)
    with (
        pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate 9") as raised,
        hiwater.torch.guard(tmp_path / "oom") as guard,
    ):
        run_out(cuda)
    assert raised.value.__cause__ is None and raised.value.__context__.__class__ in (Refused, type(None))
    report = guard.report
    assert report.verdict.kind == "fragmentation" and report.moment == "refusal" and report.device == "cuda:0"
    assert report.state.requested_bytes == 20 * MIB and report.state.largest_free_bytes == 2 * MIB
    assert report.stacks[0]["bytes"] == 20 * MIB and [one["function"] for one in report.stacks[0]["frames"]] == [
        "main",
        "forward",
    ]
    said = json.loads((tmp_path / "oom.json").read_text())
    assert (
        said["schema"] == "hiwater.oom/1"
        and said["verdict"]["kind"] == "fragmentation"
        and said["refusal"]["requested_bytes"] == 9 * MIB
    )
    text = (tmp_path / "oom.txt").read_text()
    assert "expandable_segments" in text and "forward (/work/train.py:7)" in text
    assert report.notes == [] or not walk.sees_without_unpacking()
    assert "oom.txt says what was live" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "oom.pickle"), "--at", "oom", "--format", "collapsed"]) == 0
    assert capsys.readouterr().out == f"main (/work/train.py:3);forward (/work/train.py:7) {20 * MIB}\n"


def test_without_an_observer_the_allocator_is_looked_at_afterwards(cuda, tmp_path, monkeypatch):
    cuda.allocator.capacity = 40 * MIB
    cuda.initialise()
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer")
    with pytest.raises(torch.cuda.OutOfMemoryError), hiwater.torch.guard(tmp_path / "oom", quiet=True) as guard:
        run_out(cuda)
    assert guard.report.moment == "afterwards" and "after the exception" in str(guard.report)
    assert not (tmp_path / "oom.pickle").exists() and "no history was kept" in str(guard.report)


@needs_engine
def test_a_recording_that_ends_so_has_the_report_and_the_moment(cuda, tmp_path, capsys):
    cuda.allocator.capacity = 40 * MIB
    cuda.initialise()
    path = tmp_path / "run.hiw"
    with pytest.raises(torch.cuda.OutOfMemoryError), hiwater.record(path):
        run_out(cuda)
    capture = hiwater.open(path)
    assert capture.oom_report["verdict"]["kind"] == "fragmentation"
    assert capture.device_histories[0].oom.allocated_bytes == 20 * MIB
    (mark,) = capture.device_refusals
    assert mark.kind == "cuda:0 out of memory" and mark.value == 9 * MIB
    assert (tmp_path / "run.oom.txt").exists()
    capsys.readouterr()
    assert main(["report", str(path)]) == 0
    assert "Memory of cuda:0 was refused" in capsys.readouterr().out
    assert main(["report", str(path), "--at", "oom"]) == 2
    assert "--kind device" in capsys.readouterr().err
    assert main(["report", str(path), "--at", "oom", "--kind", "device"]) == 0


def test_on_the_cpu_a_real_refusal_names_real_tensors(tmp_path):
    net = torch.nn.Linear(300, 300)

    def step():
        large = torch.zeros(777, 333)
        hidden = net(torch.ones(50, 300)).relu()
        return large, hidden, torch.empty(1 << 52)

    with (
        pytest.raises(RuntimeError, match="allocate memory"),
        hiwater.torch.guard(tmp_path / "oom", model=net, quiet=True) as guard,
    ):
        step()
    report = guard.report
    named = {one["name"]: one for one in report.tensors}
    assert named["large in step()"]["bytes"] == 777 * 333 * 4 and named["weight"]["category"] == "parameter"
    assert report.verdict.kind == "shortage" and report.device == "cpu"
    if walk.sees_without_unpacking():
        assert report.categories["saved"] > 0
    else:
        assert any("what autograd saved is not in this report" in note for note in report.notes)
    assert pickle.loads(pickle.dumps(report.to_dict()))["refusal"]["requested_bytes"] == 4 << 52


def test_other_exceptions_and_good_ends_leave_nothing(tmp_path):
    with hiwater.torch.guard(tmp_path / "oom"):
        pass
    with pytest.raises(KeyError), hiwater.torch.guard(tmp_path / "oom"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_one_refusal_is_told_once_and_a_folder_that_is_gone_costs_a_line(tmp_path, capsys):
    with (
        pytest.raises(RuntimeError),
        hiwater.torch.guard(tmp_path / "outer") as outer,
        hiwater.torch.guard(tmp_path / "inner", quiet=True) as inner,
    ):
        torch.empty(1 << 52)
    assert inner.report is not None and outer.report is None
    with pytest.raises(RuntimeError), hiwater.torch.guard(tmp_path / "none" / "oom"):
        torch.empty(1 << 52)
    assert "no report of the refused memory could be written" in capsys.readouterr().err


@needs_engine
def test_a_program_that_dies_of_it_leaves_the_report_and_its_own_ending(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\ndef train():\n    big = torch.zeros(500, 500)\n    return torch.empty(1 << 52)\ntrain()\n"
    )
    plain = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    done = subprocess.run(
        [sys.executable, "-m", "hiwater", "run", "-o", str(tmp_path / "run.hiw"), str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == plain.returncode == 1
    assert plain.stderr in done.stderr
    assert "big in train()" in (tmp_path / "run.oom.txt").read_text()
