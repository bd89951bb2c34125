"""Refused memory: messages of every version, the verdict on known situations, and reports made for real on the CPU."""

import contextlib
import json
import pickle

import pytest

import hiwater
from children import run_hiwater, run_python
from cuda_double import Card, installed
from cuda_double.device_allocator import allocation_size, round_size
from hiwater.allocator_state import AllocatorState, of_segments
from hiwater.cli import main
from hiwater.contrib.torch import oom_message
from hiwater.contrib.torch.oom_message import Observed
from hiwater.contrib.torch.oom_report import by_stack
from hiwater.contrib.torch.oom_verdict import Facts, judge
from recording import needs_engine
from snapshot_double import Allocator, Refused, frame

torch = pytest.importorskip("torch")

from hiwater.contrib.torch import walk  # noqa: E402 - after torch is known to be there

MIB, GIB = 1 << 20, 1 << 30
STACK = (frame("forward", 7), frame("main", 3))

TORCH_2_5 = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 79.11 GiB of which 17.00 "
    "MiB is free. Process 4711 has "
    "1.50 GiB memory in use. Including non-PyTorch memory, this process has 77.50 GiB memory in use. Of the "
    "allocated memory 70.00 GiB is "
    "allocated by PyTorch, with 1.20 GiB allocated in private pools (e.g., CUDA Graphs), and 5.50 GiB is "
    "reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation."
)
TORCH_1 = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity; 14.38 GiB already "
    "allocated; 92.75 MiB free; "
    "14.64 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb"
)
TORCH_2_1 = (
    "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacty of 23.69 GiB of which 0 bytes "
    "is free. 8.00 GiB allowed; "
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
    assert (
        found.kind == "fragmentation" and "20.0 MiB free, 2.00 MiB in the largest block for large requests" in found.why
    )
    assert "expandable_segments:True" in found.advice[0]
    state.expandable_segments = 3
    assert not any("expandable_segments" in one for one in judge(Facts(9 * MIB, state, 0)).advice)


def test_too_little_in_all_is_a_shortage_whose_advice_follows_the_tensors():
    state = AllocatorState(
        reserved_bytes=30 * GIB,
        requested_bytes=29 * GIB,
        inactive_split_bytes=GIB,
        largest_free={"large, stream 0x0": GIB},
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


@pytest.mark.parametrize(
    ("asked", "segment"),
    [(1, 2), (MIB, 2), (MIB + 1, 20), (9 * MIB, 20), (10 * MIB, 10), (11 * MIB, 12), (20 * MIB, 20), (511 * MIB, 512)],
)
def test_which_requests_a_segment_is_taken_for(asked, segment):
    assert allocation_size(round_size(asked)) == segment * MIB  # as torch has it
    least, most = oom_message.request_of_segment(segment * MIB)
    assert least <= asked <= most
    assert allocation_size(round_size(least)) == allocation_size(round_size(most)) == segment * MIB


def test_the_message_of_cuda_malloc_async():
    text = (
        "Allocation on device 1 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 4.86 GiB\nRequested               : "
        "10.12 GiB\nDevice limit            : 24.00 GiB\nFree (according to CUDA): 14.00 GiB\n"
        "PyTorch limit (set by user-supplied memory "
        "fraction)\n                        : {} GiB"
    )
    found = oom_message.parse(text.format("17179869184.00"))  # without a limit
    assert (found.device, found.requested_bytes, found.free_bytes) == (1, round(10.12 * GIB), 14 * GIB)
    assert (found.total_bytes, found.allocated_bytes) == (24 * GIB, round(4.86 * GIB))
    for limit, free, kind in (
        ("17179869184.00", 14, "unknown"),
        ("12.00", 14, "limit"),
        ("17179869184.00", 2, "shortage"),
    ):
        found = oom_message.parse(text.format(limit).replace("14.00", f"{free}.00"))
        facts = Facts(
            found.requested_bytes, None, found.free_bytes, found.total_bytes, found.allowed_bytes, found.allocated_bytes
        )
        assert judge(facts).kind == kind


def test_without_figures_there_is_no_verdict():
    assert judge(Facts(None)).kind == "unknown" == judge(Facts(GIB)).kind


# Reports


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr("hiwater.meters.devices.reconcile.card_of", lambda *_, **__: None)
    with installed([Card(0, 40 * MIB)]) as double:
        double[0].history.frames = list(STACK)
        yield double


def fill(cuda):
    """Every second of the blocks that fill the card is free: 20 MiB in pieces of 2. Returns those in use."""
    kept = [cuda[0].malloc(2 * MIB) for _ in range(20)]
    for address in kept[::2]:
        cuda[0].free(address)
    return kept[1::2]


def run_out(cuda):
    """What is asked for are 9 MiB; torch asks the driver for a segment of 20, and says so."""
    fill(cuda)
    cuda[0].malloc(9 * MIB)


import hiwater.contrib.torch.oom_guard  # noqa: E402 - after importorskip


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


def verdict_of(allocate):
    """The verdict on what `allocate` is refused; the report is written to the current folder."""
    with pytest.raises(torch.cuda.OutOfMemoryError), hiwater.contrib.torch.guard("oom", quiet=True) as guard:
        allocate()
    return guard.report.verdict


@pytest.fixture
def large_card(monkeypatch):
    monkeypatch.setattr("hiwater.meters.devices.reconcile.card_of", lambda *_, **__: None)
    with installed([Card(0, GIB)]) as double:
        double.initialise()
        yield double[0]


@pytest.mark.parametrize(
    ("taken", "answers", "kind"), [(1010, 1, "shortage"), (1010, 0, "shortage"), (600, 1, "unknown")]
)
def test_an_error_of_cuda_itself_is_judged_by_what_the_driver_has_left(
    large_card, tmp_path, monkeypatch, taken, answers, kind
):
    """As on an H100 that torch had filled: a call of the CUDA runtime fails, and names no size."""
    if not answers:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: {}[device])
    torch.cuda.memory._record_memory_history()
    large_card.history.frames = [
        {**frame("empty", 9), "filename": "/lib/python3.12/site-packages/library/x.py"},
        *STACK,
    ]
    large_card.malloc(taken * MIB)
    with (
        pytest.raises(RuntimeError, match="out of memory"),
        hiwater.contrib.torch.guard(tmp_path / "oom", quiet=True) as guard,
    ):
        raise RuntimeError("CUDA error: out of memory")
    found = guard.report.verdict
    assert found.kind == kind and any("they do not wait" in one for one in found.advice)
    assert (
        f"the driver had {'' if answers else 'at most '}{1024 - taken}" in found.why and "left of 1.00 GiB" in found.why
    )
    assert str(guard.report).splitlines()[0].endswith(f"were live that forward ({STACK[0]['filename']}:7) allocated")


def test_a_limit_that_was_set_is_no_fragmentation(large_card, tmp_path, monkeypatch):
    """Half of the card is allowed and nearly taken, and 17 MiB of it are free: the driver's own would do."""
    monkeypatch.chdir(tmp_path)
    torch.cuda.set_per_process_memory_fraction(0.5)
    large_card.malloc(3 * MIB)
    large_card.malloc(470 * MIB)
    found = verdict_of(lambda: large_card.malloc(200 * MIB))
    assert found.kind == "limit"
    assert (
        "torch held 17.0 MiB free" in found.why
        and "of the 512 MiB that the process may have 22.0 MiB were left" in found.why
    )
    assert "raise the limit" in found.advice[0] and "expandable" not in str(found.advice)
    # 17 in pieces and 22 to be taken would do for 30, limit or not.
    found = verdict_of(lambda: large_card.malloc(30 * MIB))
    assert found.kind == "fragmentation" and any("raise the limit" in one for one in found.advice)
    torch.cuda.set_per_process_memory_fraction(1.0)
    large_card.malloc(200 * MIB)
    assert verdict_of(lambda: large_card.malloc(400 * MIB)).kind == "shortage"


@pytest.mark.parametrize("history", [False, True])
def test_a_free_block_of_another_stream_is_not_called_too_small(large_card, tmp_path, monkeypatch, history):
    """The largest free block has 18 MiB, and 9 are refused: it is another stream's."""
    monkeypatch.chdir(tmp_path)
    if history:
        torch.cuda.memory._record_memory_history()
    large_card.malloc(2 * MIB, 5)
    large_card.malloc(1000 * MIB)
    found = verdict_of(lambda: large_card.malloc(9 * MIB + 1))
    if history:
        assert found.kind == "fragmentation"
        assert found.why.startswith(
            "9.00 MiB were asked for (rounded up), and a segment of 20.0 MiB was wanted for it: "
        )
        assert "18.0 MiB in the largest block for large requests, which is of another stream" in found.why
    else:
        assert found.kind == "fragmentation"  # 18 free and 4 at the driver's: enough for any
        assert found.why.startswith(
            "a segment of 20.0 MiB was wanted, as for any request above 1.00 MiB and up to 20.0 MiB: "
        )
        assert "18.0 MiB in the largest block for large requests, which only its own stream can use" in found.why


def test_a_small_request_is_not_told_of_large_blocks(large_card, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    large_card.malloc(2 * MIB)
    large_card.malloc(1002 * MIB)
    for _ in range(2):
        large_card.malloc(MIB)
    found = verdict_of(lambda: large_card.malloc(700 * 1024))
    assert "a segment of 2.00 MiB was wanted, as for any request of up to 1.00 MiB" in found.why
    assert "0 B in the largest block for small requests" in found.why
    assert found.kind == "fragmentation"  # 18 MiB are free, for large ones


@pytest.mark.parametrize(("history", "kind"), [(False, "unknown"), (True, "fragmentation")])
def test_the_size_of_a_request_decides_where_its_segment_does_not(large_card, tmp_path, monkeypatch, history, kind):
    """12 MiB lie free in pieces: enough for 9, and not for 19; of both torch says 20."""
    monkeypatch.chdir(tmp_path)
    if history:
        torch.cuda.memory._record_memory_history()
    kept = [large_card.malloc(4 * MIB) for _ in range(5)]
    large_card.malloc(1004 * MIB)
    for address in kept[::2]:
        large_card.free(address)
    found = verdict_of(lambda: large_card.malloc(9 * MIB))
    assert found.kind == kind
    assert ("depends on the request" in found.why) != history
    found = verdict_of(lambda: large_card.malloc(19 * MIB))
    assert found.kind == ("shortage" if history else "unknown")


def test_a_guard_tells_what_was_live_and_lets_the_exception_go_on(cuda, tmp_path, capfd):
    cuda.initialise()
    torch.cuda.memory._record_memory_history(max_entries=1000)
    with (
        pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate 20") as raised,
        hiwater.contrib.torch.guard(tmp_path / "oom") as guard,
    ):
        run_out(cuda)
    assert raised.value.__cause__ is None and raised.value.__context__ is None
    report = guard.report
    assert report.verdict.kind == "fragmentation" and report.device == "cuda:0" and report.driver_free_bytes == 0
    assert report.state.requested_bytes == 20 * MIB and report.state.largest_free_bytes() == 2 * MIB
    assert report.stacks[0]["bytes"] == 20 * MIB and [one["function"] for one in report.stacks[0]["frames"]] == [
        "main",
        "forward",
    ]
    said = json.loads((tmp_path / "oom.json").read_text())
    assert said["schema"] == "hiwater.oom/1" and said["verdict"]["kind"] == "fragmentation"
    assert said["refusal"]["requested_bytes"] == 20 * MIB
    text = (tmp_path / "oom.txt").read_text()
    assert "expandable_segments" in text and "forward (/work/train.py:7)" in text
    assert report.notes == [] or not walk.sees_without_unpacking()
    assert "oom.txt says what was live" in capfd.readouterr().err
    assert main(["report", str(tmp_path / "oom.pickle"), "--at", "oom", "--format", "collapsed"]) == 0
    assert capfd.readouterr().out == f"main (/work/train.py:3);forward (/work/train.py:7) {20 * MIB}\n"


def test_what_is_let_go_of_on_the_way_does_not_change_the_verdict(cuda, tmp_path):
    cuda.initialise()

    def work():
        kept = fill(cuda)
        try:
            cuda[0].malloc(22 * MIB)
        finally:
            for address in kept:
                cuda[0].free(address)

    with pytest.raises(torch.cuda.OutOfMemoryError), hiwater.contrib.torch.guard(tmp_path / "oom", quiet=True) as guard:
        work()
    assert guard.report.verdict.kind == "shortage"  # 20 MiB were free then, 40 are now
    assert "torch held 20.0 MiB free, the driver had 0 B" in guard.report.verdict.why  # and no block of now
    assert "after the exception" in str(guard.report)


def test_without_an_observer_the_message_says_enough(cuda, tmp_path, monkeypatch):
    cuda.initialise()
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer")
    with pytest.raises(torch.cuda.OutOfMemoryError), hiwater.contrib.torch.guard(tmp_path / "oom", quiet=True) as guard:
        run_out(cuda)
    assert guard.report.verdict.kind == "fragmentation"
    assert not (tmp_path / "oom.pickle").exists() and "no history was recorded" in str(guard.report)


@pytest.mark.parametrize("first", [True, False])
def test_a_refusal_that_the_program_catches_costs_no_snapshot_and_is_not_told_of_the_next(cuda, tmp_path, first):
    if first:
        cuda.initialise()

    def search_for_what_fits():
        cuda.initialise()
        fill(cuda)
        for megabytes in range(300, 100, -2):
            with contextlib.suppress(torch.cuda.OutOfMemoryError):
                cuda[0].malloc(megabytes * MIB)
        assert cuda[0].stats.scalars["num_ooms"] == 100 and cuda[0].snapshots == 0
        cuda[0].malloc(9 * MIB)

    with (
        pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate 20"),
        hiwater.contrib.torch.guard(tmp_path / "oom", quiet=True) as guard,
    ):
        search_for_what_fits()
    assert (
        guard.report.refusal.requested_bytes == 20 * MIB
        and "a segment of 20.0 MiB was wanted" in guard.report.verdict.why
    )


def test_a_refusal_of_ram_is_not_told_as_one_of_the_device_that_the_program_caught_before(cuda, tmp_path):
    cuda.initialise()

    def go_on_without_the_device():
        with contextlib.suppress(torch.cuda.OutOfMemoryError):
            cuda[0].malloc(100 * MIB)
        torch.empty(1 << 52)

    with (
        pytest.raises(RuntimeError, match="allocate memory"),
        hiwater.contrib.torch.guard(tmp_path / "oom", quiet=True) as guard,
    ):
        go_on_without_the_device()
    assert guard.report.device == "cpu" and guard.report.driver_free_bytes is None
    assert guard.report.refusal.requested_bytes == 4 << 52 and "of RAM were asked for" in guard.report.verdict.why


def test_only_what_was_observed_of_the_same_refusal_is_used():
    message = TORCH_2_5.replace("20.00 MiB", "1.37 GiB")
    refusal = oom_message.parse(message)
    size = round(1.37 * GIB)
    assert Observed(1, size, 17 * MIB).is_of(refusal) and Observed(1, size + MIB, 17 * MIB).is_of(refusal)
    for other in (
        Observed(0, size, 17 * MIB),
        Observed(1, size + 20 * MIB, 17 * MIB),
        Observed(1, size, 18 * MIB),
    ):
        assert not other.is_of(refusal)
    for text in (message.replace("CUDA out", "XPU out"), "CUDA error: out of memory", ""):
        assert not Observed(1, size, 17 * MIB).is_of(oom_message.parse(text))
    written = {0: "0 bytes", 512: "512 bytes", 1 << 10: "1024 bytes", 1536: "1.50 KiB", MIB: "1024.00 KiB"}
    written |= {MIB + 1: "1.00 MiB", GIB: "1024.00 MiB", GIB + 1: "1.00 GiB", 5000 * GIB: "5000.00 GiB"}
    assert {size: oom_message.as_torch_writes(size) for size in written} == written


@needs_engine
def test_a_recording_that_ends_so_has_the_report_and_the_moment(cuda, tmp_path, capfd):
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
    capfd.readouterr()
    assert main(["report", str(path)]) == 0
    assert "Memory of cuda:0 was refused" in capfd.readouterr().out
    assert main(["report", str(path), "--at", "oom"]) == 2
    assert "--kind device" in capfd.readouterr().err
    assert main(["report", str(path), "--at", "oom", "--kind", "device"]) == 0


def test_on_the_cpu_a_real_refusal_names_real_tensors(tmp_path):
    net = torch.nn.Linear(300, 300)

    def step():
        large = torch.zeros(777, 333)
        hidden = net(torch.ones(50, 300)).relu()
        return large, hidden, torch.empty(1 << 52)

    with (
        pytest.raises(RuntimeError, match="allocate memory"),
        hiwater.contrib.torch.guard(tmp_path / "oom", model=net, quiet=True) as guard,
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
    with hiwater.contrib.torch.guard(tmp_path / "oom"):
        pass
    with pytest.raises(KeyError), hiwater.contrib.torch.guard(tmp_path / "oom"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_one_refusal_is_told_once_and_a_folder_that_is_gone_costs_a_line(tmp_path, capfd):
    with (
        pytest.raises(RuntimeError),
        hiwater.contrib.torch.guard(tmp_path / "outer") as outer,
        hiwater.contrib.torch.guard(tmp_path / "inner", quiet=True) as inner,
    ):
        torch.empty(1 << 52)
    assert inner.report is not None and outer.report is None
    with pytest.raises(RuntimeError), hiwater.contrib.torch.guard(tmp_path / "none" / "oom"):
        torch.empty(1 << 52)
    assert "no report of the refused memory could be written" in capfd.readouterr().err


@needs_engine
def test_a_program_that_dies_of_it_leaves_the_report_and_its_own_ending(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\ndef train():\n    big = torch.zeros(500, 500)\n    return torch.empty(1 << 52)\ntrain()\n"
    )
    plain = run_python(program)
    done = run_hiwater("run", "-o", tmp_path / "run.hiw", program)
    assert done.returncode == plain.returncode == 1
    assert plain.stderr in done.stderr
    assert "big in train()" in (tmp_path / "run.oom.txt").read_text()
