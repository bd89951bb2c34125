"""Which tensors a report finds, what it calls them, and that looking leaves nothing behind."""

import collections
import ctypes
import functools
import gc
import json
import subprocess
import sys
import sysconfig
import threading
import weakref

import pytest

from children import run_python

torch = pytest.importorskip("torch")

from hypothesis import given, strategies  # noqa: E402 - after torch is known to be there
from torch import nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hiwater  # noqa: E402
from hiwater.contrib.torch import allocator, heap, identity, storages, walk  # noqa: E402
from hiwater.contrib.torch.collect import Holding, collect  # noqa: E402
from hiwater.contrib.torch.records import Category, TensorView  # noqa: E402
from hiwater.contrib.torch.storages import Place  # noqa: E402
from hiwater.errors import BadRequest  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch warns of beta features that are used here on purpose
    pytest.mark.usefixtures("older_objects_are_hidden", "nothing_left_of_other_tests"),
]
_TP_CLEAR = 192  # where a type keeps what the collector calls, on 64 bits
HELD_BY_THIS_MODULE = {}


def _names(report=None):
    """Names of all tensors, with the sizes of their storages, on the CPU."""
    found = (report or hiwater.contrib.torch.MemReporter().data()).device("cpu")
    return {look.name: entry for entry in found.storages for look in (entry.owner, *entry.others)}


def _entry(tensor, part=None):
    """The row in which a tensor's storage is, found by identity, not by name."""
    with storages.undisturbed():
        pieces = [piece for piece in storages.pieces(tensor) if part is None or piece.part == part]
    return collect({}).holdings[pieces[0].key]


# Names


def test_variables_containers_and_attributes_are_named_by_their_path():
    class Box:
        __slots__ = ("inner",)

        def __init__(self, inner):
            self.inner = inner

    class Plain:
        pass

    Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024 - the kind whose fields are to be named
    plain = Plain()
    plain.state = {"hidden": [torch.ones(11)], 3: torch.ones(12), ("a", 1): torch.ones(13)}
    boxed = Box(torch.ones(14))
    pair = Pair(torch.ones(15), torch.ones(16))
    queue = collections.deque([torch.ones(17)])
    bound = functools.partial(print, torch.ones(18), end=torch.ones(19))
    closed_over = torch.ones(20)

    def generate():
        local = torch.ones(21)
        yield closed_over
        yield local

    generator = generate()
    next(generator)
    alive = (boxed, pair, queue, bound)
    where = " in test_variables_containers_and_attributes_are_named_by_their_path()"
    names = {name.removesuffix(where): entry.nbytes for name, entry in _names().items() if name.endswith(where)}
    assert {
        "plain.state['hidden'][0]": 44, "plain.state[3]": 48, "plain.state[('a', 1)]": 52, "boxed.inner": 56,
        "pair.left": 60, "pair.right": 64, "queue[0]": 68, "bound(0)": 72, "bound(end=)": 76, "closed_over": 80,
        "generator.<locals>.local": 84,
    }.items() <= names.items()  # fmt: skip
    del alive


def test_globals_of_modules_and_variables_of_other_threads_are_found(monkeypatch):
    monkeypatch.setitem(HELD_BY_THIS_MODULE, "cache", [torch.full((77,), 1.0)])
    ready, done = threading.Event(), threading.Event()

    def worker():
        in_a_thread = torch.ones(91)
        ready.set()
        done.wait(30)
        return in_a_thread

    thread = threading.Thread(target=worker)
    thread.start()
    ready.wait(30)
    try:
        names = _names()
    finally:
        done.set()
        thread.join()
    assert names["in_a_thread in worker()"].nbytes == 364
    assert names[f"{__name__}.HELD_BY_THIS_MODULE['cache'][0]"].nbytes == 308


def test_models_are_named_as_given_or_by_their_variables():
    first, second = nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    names = _names(hiwater.contrib.torch.MemReporter(first).data())
    assert names["weight"].category == Category.parameter
    names = _names(hiwater.contrib.torch.MemReporter({"encoder": first, "decoder": second}).data())
    assert {"encoder.weight", "encoder.bias", "decoder.0.weight", "decoder.1.weight"} <= names.keys()
    assert names["decoder.0.running_mean"].category == Category.buffer
    assert "0.weight" in _names(hiwater.contrib.torch.MemReporter([first]).data())
    where = " in test_models_are_named_as_given_or_by_their_variables()"
    names = _names()
    assert {f"first.weight{where}", f"second.0.running_var{where}"} <= names.keys()


def test_a_shared_weight_belongs_to_its_first_owner_and_views_are_listed():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    row, alike = model[0].weight.detach()[2], model[0].weight.detach()
    entry = _names(hiwater.contrib.torch.MemReporter(model).data())["0.weight"]
    others = {look.name.partition(" ")[0]: look for look in entry.others}
    assert entry.nbytes == 256 and entry.owner.name == "0.weight"
    assert others["row"].is_view and others["row"].shape == (8,)
    assert {"row", "alike"} <= others.keys()
    text = str(hiwater.contrib.torch.MemReporter(model))
    assert text.count("0.weight ") == 1 and "1.weight" not in text
    del row, alike


def test_gradients_are_found_before_python_sees_them():
    model = nn.Linear(5, 6)
    leaf = torch.ones(2, 5, requires_grad=True)
    middle = leaf * 2
    middle.retain_grad()
    model(middle).sum().backward()
    where = " in test_gradients_are_found_before_python_sees_them()"
    names = _names(hiwater.contrib.torch.MemReporter(model).data())
    assert [names[name].nbytes for name in ("weight.grad", f"leaf.grad{where}", f"middle.grad{where}")] == [120, 40, 40]
    assert names["weight.grad"].category == names[f"leaf.grad{where}"].category == Category.gradient


def test_saved_tensors_have_their_node_and_slot():
    source = torch.ones(33, requires_grad=True)
    result = source.exp().relu().softmax(0).sum()
    reporter = hiwater.contrib.torch.MemReporter(unpack=True)
    saved = [entry.owner for entry in _names(reporter.data()).values() if entry.category is Category.saved]
    nodes = {look.name.partition(" ")[0] for look in saved}
    assert {"ExpBackward0.result", "ReluBackward0.result", "SoftmaxBackward0.result"} <= nodes
    result.backward()
    left = _names(reporter.data()).values()
    assert [entry for entry in left if entry.category is Category.saved and entry.nbytes == 132] == []


# Kinds of tensors


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
def test_sparse_tensors_are_their_parts(layout):
    places, ends = torch.arange(4), torch.arange(5)
    tensor = {
        "coo": lambda: torch.sparse_coo_tensor(torch.stack([places, places]), torch.ones(4), (4, 4)),
        "csr": lambda: torch.sparse_csr_tensor(ends, places, torch.ones(4), (4, 4)),
        "csc": lambda: torch.sparse_csc_tensor(ends, places, torch.ones(4), (4, 4)),
        "bsr": lambda: torch.sparse_bsr_tensor(torch.arange(3), torch.arange(2), torch.ones(2, 2, 2), (4, 4)),
    }[layout]()
    with storages.undisturbed():
        sizes = {piece.part: piece.nbytes for piece in storages.pieces(tensor)}
    expected = {
        "coo": {"indices": 2 * 4 * 8, "values": 4 * 4},
        "csr": {"crow_indices": 5 * 8, "col_indices": 4 * 8, "values": 4 * 4},
        "csc": {"ccol_indices": 5 * 8, "row_indices": 4 * 8, "values": 4 * 4},
        "bsr": {"crow_indices": 3 * 8, "col_indices": 2 * 8, "values": 8 * 4},
    }[layout]
    assert sizes == expected
    assert _entry(tensor, "values").views[0].part == "values"


def test_nested_and_quantised_tensors_are_their_parts():
    ragged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    strided = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    channels = torch.quantize_per_channel(torch.randn(2, 3), torch.ones(2), torch.zeros(2), 0, torch.quint8)
    whole = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    with storages.undisturbed():
        parts = [
            {piece.part: piece.nbytes for piece in storages.pieces(one)} for one in (ragged, strided, channels, whole)
        ]
    assert parts[0]["_values"] == 20 and parts[0]["_offsets"] == 24
    assert parts[1][""] == 20 and parts[1]["sizes"] == 16
    assert parts[2] == {"": 6, "scales": 2 * 4, "zero_points": 2 * 4}
    assert parts[3] == {"": 4}


class Wrapper(torch.Tensor):
    """A wrapper subclass with two tensors inside, which counts operations that reach it."""

    operations = 0

    @staticmethod
    def __new__(cls, first, second):
        made = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)
        made.first, made.second = first, second
        return made

    def __tensor_flatten__(self):
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Wrapper(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.operations += 1
        raise NotImplementedError(func)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.operations += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_wrapper_subclasses_are_what_they_wrap_and_none_of_their_code_runs():
    wrapped = Wrapper(torch.ones(10), torch.ones(20, dtype=torch.int8))
    Wrapper.operations = 0
    names = _names()
    assert Wrapper.operations == 0
    name = "wrapped in test_wrapper_subclasses_are_what_they_wrap_and_none_of_their_code_runs()"
    looks = [look for entry in names.values() for look in (entry.owner, *entry.others) if look.name == name]
    assert {(look.part, look.numel, look.dtype) for look in looks} == {("first", 10, "float32"), ("second", 20, "int8")}
    del wrapped


def test_meta_fake_and_opaque_tensors_have_no_bytes_and_names_of_their_own():
    from torch._subclasses.fake_tensor import FakeTensorMode

    shape_only = torch.empty(1000, device="meta")
    with FakeTensorMode():
        posing = torch.empty(500)
    packed = torch.eye(3).to_mkldnn()
    alive = (shape_only, posing, packed, nn.LazyLinear(4))
    report = hiwater.contrib.torch.MemReporter().data()
    found = {entry.owner.name.partition(" ")[0]: (entry.place, entry.nbytes) for entry in report.without_memory}
    assert found["shape_only"] == (Place.meta, 4000)
    assert found["posing"] == (Place.fake, 2000)
    assert found["packed"] == (Place.opaque, None)
    assert "would be 3.91 KiB" in str(hiwater.contrib.torch.MemReporter())
    assert not {"shape_only", "posing", "packed"} & {name.partition(" ")[0] for name in _names(report)}
    del alive


def test_only_cuda_rounds():
    assert [storages.rounded(size, "cpu") for size in (0, 1, 512)] == [0, 1, 512]
    assert [storages.rounded(size, "cuda:1") for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]


# Hostile neighbours


class Liar:
    """Claims to be a tensor, and fails at whatever is asked."""

    @property
    def __class__(self):
        raise RuntimeError("asked for its class")

    def __getattr__(self, name):
        raise RuntimeError("asked for an attribute")

    def __repr__(self):
        raise RuntimeError("asked for its repr")

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = None


class Meta(type):
    @property
    def __dict__(cls):
        raise RuntimeError("a class asked for its dict")

    @property
    def __mro__(cls):
        raise RuntimeError("a class asked for its bases")

    def __instancecheck__(cls, instance):
        raise RuntimeError("an isinstance check")


class Odd(metaclass=Meta):
    @property
    def __dict__(self):
        raise RuntimeError("asked for its dict")


class BrokenDict(dict):
    def items(self):
        raise RuntimeError("asked for its items")

    def __iter__(self):
        raise RuntimeError("iterated over")


def test_objects_that_answer_nothing_do_no_harm():
    class Referent:
        pass

    gone = Referent()
    dead = weakref.proxy(gone)
    del gone
    objects = [dead, Liar(), Odd(), BrokenDict(kept=torch.ones(55))]
    names = _names()
    held = [name for name, entry in names.items() if entry.nbytes == 220]
    assert held == ["objects[3]['kept'] in test_objects_that_answer_nothing_do_no_harm()"]
    with pytest.raises(ReferenceError):
        repr(objects[0].anything)


@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="types are laid out in another manner there"
)
def test_a_tensor_that_the_collector_has_emptied_is_passed_over():
    """As one in a cycle that somebody still holds: torch answers no question about it."""
    emptied, beside = nn.Parameter(torch.ones(11)), torch.ones(33)
    model = nn.Linear(2, 2)
    model.emptied = emptied
    slot = ctypes.c_void_p.from_address(id(torch.Tensor) + _TP_CLEAR).value
    assert ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(slot)(emptied) == 0
    with pytest.raises(RuntimeError, match="undefined"):
        _ = emptied.is_leaf
    sizes = [entry.nbytes for entry in _names().values()]
    assert 132 in sizes and 44 not in sizes
    del beside


def test_a_wrapper_whose_inside_fails_is_noted_or_passed_over():
    class Broken(Wrapper):
        def __tensor_flatten__(self):
            raise RuntimeError("not now")

    broken = Broken(torch.ones(10), torch.ones(20))
    assert hiwater.contrib.torch.MemReporter().data().devices
    del broken


# Nothing is left behind


def _graph():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Softmax(-1), nn.Dropout(0.5))
    given = torch.randn(8, 16)
    return model, checkpoint(model, given, use_reentrant=False).exp().sum(), model(given).exp().sum()


def _saved_storages():
    return {
        key: one for key, one in collect({}, unpack=True).holdings.items() if one.views[0].category is Category.saved
    }


@pytest.mark.parametrize("end", ["drop", "backward"])
def test_every_storage_dies_as_if_nobody_had_looked(end):
    others = set(_saved_storages())  # which earlier tests have left
    model, checkpointed, loss = _graph()
    # Not the statistics of the batch norm, which may be a buffer's.
    weak = [one.weak for key, one in _saved_storages().items() if key not in others and one.nbytes > 64]
    if not walk.sees_without_unpacking():  # there a checkpoint was computed again for the look, and is gone with it
        weak = [one for one in weak if not one.expired()]
    assert len(weak) >= 5 and not any(one.expired() for one in weak)
    reporter = hiwater.contrib.torch.MemReporter(model, unpack=True)
    reporter.report()
    reporter._repr_html_()
    gc.disable()  # what has to be collected was kept alive
    try:
        if end == "drop":
            del loss, checkpointed
        else:
            loss.backward()
            checkpointed.backward()
            del loss, checkpointed
        assert [one.expired() for one in weak] == [True] * len(weak)
    finally:
        gc.enable()


def test_a_variable_dropped_after_a_report_dies_at_once():
    local = torch.ones(1000)
    weak = StorageWeakRef(local.untyped_storage())
    hiwater.contrib.torch.MemReporter().data()
    del local
    assert weak.expired()


def test_the_users_own_copy_of_locals_is_left_alone():
    number = 5
    mine = locals()
    hiwater.contrib.torch.MemReporter().data()
    assert mine["number"] == number


def test_a_walk_runs_no_hook_and_moves_no_version():
    called = []

    def pack(tensor):
        return ("packed", tensor)

    def unpack(pair):
        called.append(pair)
        return pair[1]

    source = torch.ones(70, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        result = source.exp().sin().sum()
    version = source._version
    entries = _names()
    assert called == [] and source._version == version
    if walk.sees_without_unpacking():
        assert any("packed by a hook" in name for name in entries)
    result.backward()
    assert len(called) == 2


def test_gradients_modes_and_versions_are_as_before_a_report():
    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    held = torch.eye(3).to_sparse()
    with Counting(), torch.inference_mode():
        hiwater.contrib.torch.MemReporter().data()
        assert Counting.seen == 0
        assert torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    del held


def test_a_fresh_program_pays_nothing_for_the_name():
    code = (
        "import sys, hiwater, hiwater.contrib.torch; assert 'torch' not in sys.modules; assert 'MemReporter' in "
        "dir(hiwater.contrib.torch)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys; sys.modules['torch'] = None; import hiwater; hiwater.contrib.torch.MemReporter"
    failed = run_python("-c", code)
    assert "ExtraMissing: hiwater.contrib.torch.MemReporter needs torch; pip install 'hiwater[torch]'" in failed.stderr


# Old torch: what SavedTensor does not show is asked for by name, and only if wished


def test_before_torch_2_10_saved_tensors_need_leave_to_run_hooks(monkeypatch):
    monkeypatch.setattr(walk, "sees_without_unpacking", lambda: False)
    source = torch.ones(41, requires_grad=True)
    result = source.exp().sum()

    def found(report):
        storages = report.device("cpu").storages
        return [one.nbytes for one in storages if one.owner.name.startswith("ExpBackward0") and one.nbytes == 4 * 41]

    report = hiwater.contrib.torch.MemReporter().data()
    assert found(report) == []
    assert any("unpack=True" in note for note in report.notes)
    report = hiwater.contrib.torch.MemReporter(unpack=True).data()
    assert found(report) == [164]
    assert not any("unpack=True" in note for note in report.notes)
    del result


# The allocator's side, on snapshots of the documented form


def _segment(address, blocks, device=0, pool=(0, 0), stream=0, with_addresses=True):
    rows, at = [], address
    for size, requested, state, *frames in blocks:
        row = {"size": size, "requested_size": requested, "state": state, "frames": frames}
        rows.append({**row, "address": at} if with_addresses else row)
        at += size
    return {"address": address, "device": device, "stream": stream, "segment_pool_id": pool, "blocks": rows}


def _on_card(address, nbytes, category, name):
    look = TensorView(name, category, "Tensor", (nbytes // 4,), "float32", nbytes // 4)
    return Holding("cuda:0", Place.memory, nbytes, False, address, None, [look])


@pytest.mark.parametrize("with_addresses", [True, False])
def test_a_card_is_reconciled_block_by_block(with_addresses):
    line = {"filename": "/home/me/train.py", "line": 7, "name": "step"}
    inside = {"filename": "/site/torch/nn/linear.py", "line": 1, "name": "forward"}
    segments = [
        _segment(
            4096,
            [(1024, 1000, "active_allocated"), (512, 500, "active_allocated", inside, line)],
            with_addresses=with_addresses,
        ),
        _segment(
            1 << 20,
            [
                (2048, 2048, "active_allocated"),
                (512, 4, "inactive"),
                (1024, 9, "active_awaiting_free"),
                (512, 8, "active_allocated"),
            ],
            pool=(0, 1),
            stream=3,
            with_addresses=with_addresses,
        ),
    ]
    blocks = allocator.blocks_in(segments)
    assert blocks.nbytes == 1024 + 512 + 2048 + 512 and blocks.awaiting_bytes == 1024
    assert blocks.at(4096 + 1023).address == 4096 and blocks.at(4095) is None and blocks.at((1 << 20) + 2048) is None
    assert blocks.at(1 << 20).private and blocks.at(1 << 20).stream == 3
    found = [
        _on_card(4096, 1000, Category.parameter, "weight"),
        _on_card(1 << 20, 2048, Category.gradient, "weight.grad"),
        _on_card(1 << 30, 4000, Category.variable, "another's"),
        _on_card(4096 + 500, 100, Category.variable, "second storage of a block"),
    ]
    part = identity.with_blocks("cuda:0", found, blocks)
    sums = part.identity
    assert (sums.named_bytes, sums.by_category[Category.gradient], sums.rounding_bytes) == (1000, 2048, 24)
    assert (sums.unowned_bytes, sums.outside_bytes, sums.allocated_bytes, sums.residual_bytes) == (1024, 4100, 4096, 0)
    assert [(one.nbytes, one.origin) for one in sums.unowned] == [(512, "step (train.py:7)"), (512, "")]


@given(
    sizes=strategies.lists(
        strategies.lists(strategies.tuples(strategies.integers(1, 5), strategies.booleans()), max_size=6), max_size=4
    ),
    looked_at=strategies.lists(strategies.integers(0, 40), max_size=8),
)
def test_any_snapshot_is_reconciled_as_by_hand(sizes, looked_at):
    """Against a naive model: a list of all bytes in use, each with its block."""
    segments, owner_of, requested = [], {}, {}
    for place, blocks in enumerate(sizes):
        at = start = place * (1 << 20)
        rows = []
        for units, active in blocks:
            rows.append((units * 512, units * 512 - 100, "active_allocated" if active else "inactive"))
            if active:
                owner_of.update(dict.fromkeys(range(at, at + units * 512, 512), at))
                requested[at] = units * 512 - 100
            at += units * 512
        segments.append(_segment(start, rows))
    starts = sorted(requested)
    chosen = [starts[one % len(starts)] for one in looked_at] if starts else []
    chosen = [one for one in chosen if one]  # address 0 means no memory
    found = [_on_card(one, requested[one], Category.variable, str(one)) for one in chosen]
    blocks = allocator.blocks_in(segments)
    for address in (*owner_of, *(one + 511 for one in owner_of), -1, 1 << 30):
        known = owner_of.get(address - address % 512)
        block = blocks.at(address)
        assert (block.address if block else None) == (known if address else None)
    sums = identity.with_blocks("cuda:0", found, blocks).identity
    in_use = 512 * len(owner_of)
    held = 512 * sum(1 for start in owner_of.values() if start not in chosen)
    assert (sums.allocated_bytes, sums.unowned_bytes, sums.residual_bytes) == (in_use, held, 0)
    assert sums.rounding_bytes == 100 * len(set(chosen))


def test_a_device_with_one_counter_gives_the_rest_to_cpp():
    found = [_on_card(0, 1000, Category.parameter, "weight")]
    sums = identity.with_counter("cuda:0", found, 5000, "torch.cuda.memory_allocated()").identity
    assert (sums.named_bytes, sums.rounding_bytes, sums.unowned_bytes, sums.residual_bytes) == (1000, 24, 3976, 0)


def test_the_allocators_list_is_asked_for_without_its_traces_where_that_can_be_said(monkeypatch):
    """Against a stand-in for torch.cuda's own function, old and new."""
    segments = [
        _segment(512, [(512, 500, "active_allocated")]),
        _segment(4096, [(1024, 9, "active_allocated")], device=1),
    ]
    asked = []

    def new(mempool_id=None, include_traces=True):
        asked.append(include_traces)
        return segments

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", new)
    assert allocator.blocks_of("cuda:0").nbytes == 512 and allocator.blocks_of("cuda:1").nbytes == 1024
    assert asked == [False, False]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    assert allocator.blocks_of("cuda:1").nbytes == 1024
    assert allocator.blocks_of("cuda:2") is None  # no segments: a counter may know more
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 4321)
    assert allocator.allocated_bytes("cuda:0") == (4321, "torch.cuda.memory_allocated()")


def test_nothing_is_asked_of_a_device_that_does_not_run():
    if torch.cuda.is_initialized():
        pytest.skip("a device runs in this process")
    assert allocator.blocks_of("cuda:0") is None and allocator.allocated_bytes("cuda:0") is None
    assert not torch.cuda.is_initialized()


# The report itself


def test_devices_may_be_written_in_many_ways():
    reporter = hiwater.contrib.torch.MemReporter(nn.Linear(1, 1))
    for device in ("cpu", torch.device("cpu")):
        assert [one.device for one in reporter.data(device).devices] == ["cpu"]
    assert reporter.data("cuda:0").devices == ()
    with pytest.raises(BadRequest, match="is not a device"):
        reporter.data("gpu")
    with pytest.raises(BadRequest, match="not a model"):
        hiwater.contrib.torch.MemReporter(7)
    with pytest.raises(BadRequest, match="not an optimizer"):
        reporter.add_optimizer(nn.Linear(1, 1))


def test_text_html_and_data_say_the_same(capsys):
    model = nn.Sequential(nn.Linear(100, 50), nn.ReLU())
    evil = {"</td><script>alert(1)</script>": torch.ones(3000)}
    loss = model(torch.randn(4, 100)).sum()
    reporter = hiwater.contrib.torch.MemReporter(model)
    reporter.report(verbose=True)
    text = capsys.readouterr().out
    page, data = reporter._repr_html_(), reporter.to_dict()
    assert "0.weight " in text and "19.5 KiB" in text and "saved by autograd" in text
    assert "0.weight" in page and "<script>" not in page and "&lt;script&gt;" in page
    cpu = next(one for one in data["devices"] if one["device"] == "cpu")
    assert json.loads(json.dumps(data)) == json.loads(json.dumps(data, default=str))
    assert cpu["identity"]["named_bytes"] + sum(
        cpu["identity"]["by_category"][one] for one in ("gradient", "optimizer", "saved")
    ) == sum(one["nbytes"] for one in cpu["storages"])
    del loss, evil


def test_pre_collect_lets_cycles_go_first():
    class Cycle:
        pass

    cycle = Cycle()
    cycle.itself, cycle.tensor = cycle, torch.ones(123)
    weak = StorageWeakRef(cycle.tensor.untyped_storage())
    del cycle
    gc.disable()
    try:
        assert not weak.expired()
        hiwater.contrib.torch.MemReporter(pre_collect=True).data()
        assert weak.expired()
    finally:
        gc.enable()


def test_what_lies_in_no_variable_is_numbered():
    kept = iter([torch.ones(321)])
    held = [entry.owner.name for entry in _names().values() if entry.nbytes == 1284]
    assert len(held) == 1 and held[0].startswith("Tensor")
    del kept


def test_nodes_are_told_by_their_type():
    result = torch.ones(2, requires_grad=True).exp()
    assert (
        heap.is_node_type(type(result.grad_fn)) and not heap.is_node_type(torch.Tensor) and not heap.is_node_type(Odd)
    )


NOTEBOOK = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell("import torch, hiwater")
shell.run_cell("batch = torch.ones(777)", store_history=True)
shell.run_cell("torch.ones(888)", store_history=True)
shell.run_cell("batch", store_history=True)
shell.run_cell("rows = hiwater.contrib.torch.MemReporter().data().device('cpu').storages", store_history=True)
shell.run_cell("print(*[one.owner.name for one in rows if one.nbytes in (3108, 3552)])", store_history=True)
"""


def test_in_a_notebook_a_users_name_comes_before_those_of_its_history():
    pytest.importorskip("IPython")
    done = run_python("-W", "ignore", "-c", NOTEBOOK, check=True)
    first, second = done.stdout.splitlines()[-1].split()
    assert first == "batch" and second in {"_2", "__", "Out[2]"}


def test_an_allocator_without_a_snapshot_or_counters_is_one_without_figures(monkeypatch):
    def refuses(*_, **__):
        raise RuntimeError("CUDAPluggableAllocator does not yet support this")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", refuses)
    monkeypatch.setattr(torch.cuda, "memory_allocated", refuses)
    assert allocator.blocks_of("cuda:0") is None
    assert allocator.allocated_bytes("cuda:0") is None
