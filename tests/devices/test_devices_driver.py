"""The driver's figures: the real nvidia-ml-py and hiwater over a libnvidia-ml.so.1 that is compiled here, and
answers and refuses as nvml.h says."""

import os
import sys
import threading
import types

import pytest

import driver_double
import hiwater
import jax_double
from children import run_python
from cuda_double import Card, forget, installed
from driver_double import GPU_IS_LOST, LISTS, MEMORY_OF_CARDS, MIB, NO_PERMISSION, uuid_of
from hiwater.cli import main
from hiwater.errors import MeterUnavailable
from hiwater.meters import devices
from hiwater.meters.devices import identity
from hiwater.meters.devices import nvml as nvml_module
from hiwater.meters.devices.base import Device
from hiwater.meters.devices.nvml import CardMemory, Nvml, ProcessOnCard
from places import HELPERS

pytest.importorskip("pynvml")
GIB = 1 << 30


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    forget()
    monkeypatch.setattr(identity, "_of_ordinals", {})
    yield
    forget()


@pytest.fixture
def driver():
    made = driver_double.Driver()
    yield made
    made.remove()


@pytest.fixture
def cuda_driver():
    made = []

    def put(order, **traits):
        made.append(driver_double.CudaDriver(order, **traits))

    yield put
    for each in made:
        each.remove()


@pytest.fixture
def in_a_container(monkeypatch):
    monkeypatch.setattr(nvml_module, "_in_first_namespace", lambda: False)


@pytest.fixture
def outside_of_containers(monkeypatch):
    monkeypatch.setattr(nvml_module, "_in_first_namespace", lambda: True)


def ours(source, **how):
    return source.process(source.devices()[0], **how)


def cuda_device(ordinal, number=None, backend="torch"):
    uuid = identity.canonical(uuid_of(number)) if number is not None else ""
    return Device(backend, f"cuda:{ordinal}", ordinal, uuid, ordinal)


# What there is


def test_without_its_package_or_a_driver_nvml_says_what_is_missing(monkeypatch):
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("there is a driver here")
    assert "no NVIDIA driver" in Nvml().status().reason
    with pytest.raises(MeterUnavailable, match="no NVIDIA driver"), hiwater.track(meters=("nvml",)):
        pass
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install 'hiwater[gpu]'" in Nvml().status().reason


def test_a_driver_without_cards_says_so(driver):
    assert driver
    assert "lists no card" in Nvml().status().reason


def test_nvml_finds_this_process(driver):
    driver.processes(driver.card(), {os.getpid(): 500 * MIB, 77: 100 * MIB})
    source = Nvml()
    assert source.status() == (True, "NVML, driver 580.00")
    assert ours(source) == ProcessOnCard(500 * MIB, "", 100 * MIB)
    assert source.card(source.devices()[0]) == CardMemory(80 << 30, 900 * MIB, 3 * MIB)


def test_an_old_driver_does_not_tell_what_it_reserves(driver):
    driver.card()
    driver.refuse("nvmlDeviceGetMemoryInfo_v2", error=13)  # NVML_ERROR_FUNCTION_NOT_FOUND
    source = Nvml()
    assert source.card(source.devices()[0]) == CardMemory(80 << 30, 903 * MIB, -1)


def test_the_list_of_processes_is_read_once_a_second_at_most(driver):
    driver.processes(driver.card(), {os.getpid(): MIB})
    clock = [100.0]
    source = Nvml(clock=lambda: clock[0])
    for step in range(50):
        clock[0] = 100 + step / 20
        ours(source)
        source.card(source.devices()[0])
    assert driver.process_lists == 3


# What is refused


def test_a_card_whose_memory_is_not_told_has_its_processes_all_the_same(driver):
    """As on a GB10."""
    driver.processes(driver.card(), {os.getpid(): 500 * MIB})
    driver.refuse(*MEMORY_OF_CARDS)
    source = Nvml()
    (card,) = source.devices()
    assert source.card(card) == CardMemory(-1, -1, -1, "the driver has no figure of this card's memory: Not Supported")
    assert source.limit_bytes(card) == -1
    with hiwater.track(meters=("gpu", "nvml")) as t:
        pass
    assert list(t.usage.gpu[0].levels) == ["used"]
    assert "Not Supported" in t.usage.unmeasured["nvml:0:device_used"]


def test_a_driver_that_lists_no_processes_is_not_taken_to_say_that_there_are_none(driver, outside_of_containers):
    driver.card()
    driver.refuse(*LISTS, error=NO_PERMISSION)
    source = Nvml()
    for has_context in (False, True):
        found = ours(source, has_context=has_context)
        assert (found.bytes, found.others_bytes) == (-1, -1)
        assert "does not list the processes on this card: Insufficient Permissions" in found.reason


def test_a_driver_that_lists_no_drawing_processes_tells_the_computing_ones(driver):
    driver.processes(driver.card(), {os.getpid(): 500 * MIB})
    driver.refuse(LISTS[1])
    assert ours(Nvml()) == ProcessOnCard(500 * MIB, "", 0)


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", *MEMORY_OF_CARDS, *LISTS])
def test_a_lost_card_costs_its_own_figures_and_not_the_others(driver, function):
    lost, sound = driver.card(0), driver.card(1)
    driver.processes(sound, {os.getpid(): 5 * MIB})
    driver.refuse(function, error=GPU_IS_LOST, device=lost)
    source = Nvml()
    assert [card.name for card in source.devices()] == ["0", "1"]
    assert source.process(source.devices()[1]).bytes == 5 * MIB
    first = source.devices()[0]
    assert source.statistics(first).keys() == source.statistics(source.devices()[1]).keys()
    # A device that does not say which it is may be the lost one.
    assert identity.card_of(cuda_device(0), source.devices()) is None
    assert identity.card_of(cuda_device(0, 1), source.devices()).name == "1"


def test_a_card_lost_later_is_no_error_of_ours(driver):
    driver.card()
    clock = [100.0]
    source = Nvml(clock=lambda: clock[0])
    assert source.card(source.devices()[0]).used_bytes == 900 * MIB
    driver.refuse(*MEMORY_OF_CARDS, *LISTS, error=GPU_IS_LOST)
    clock[0] += 2
    assert "GPU is lost" in source.card(source.devices()[0]).reason
    assert "GPU is lost" in ours(source).reason


def test_a_driver_that_withholds_the_figure_says_so(driver):
    driver.processes(driver.card(), {os.getpid(): None, 77: 5 * MIB})
    assert ours(Nvml()).bytes == -1
    assert "hides" in ours(Nvml()).reason
    driver.processes(0, {os.getpid(): 5 * MIB, 77: None, 78: 9 * MIB})
    assert ours(Nvml()) == ProcessOnCard(5 * MIB, "", -1)  # what 77 has is not nothing


def test_doctor_names_each_card_and_what_the_driver_refuses(driver, capsys):
    driver.card(0)
    driver.refuse(*MEMORY_OF_CARDS, device=driver.card(1))
    main(["doctor"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"900 MiB of 80.0 GiB used, by everybody ({uuid_of(0, '')})" in said
    assert "the driver has no figure of this card's memory: Not Supported" in said
    assert uuid_of(1, "") in said


# Containers


def test_in_a_container_the_figure_is_unknown_rather_than_wrong(driver, in_a_container):
    card = driver.card()
    driver.processes(card, {4_000_001: 500 * MIB, 4_000_002: 100 * MIB})
    source = Nvml()
    assert ours(source).bytes == -1
    assert "host's numbers" in ours(source, has_context=True).reason
    with hiwater.track(meters=("gpu", "nvml")) as t:
        pass
    assert list(t.usage.gpu[0].levels) == ["device_used"]
    assert "in a container" in t.usage.unmeasured["nvml:0:used"]
    driver.processes(card, {4_000_001: 500 * MIB})
    alone = Nvml()
    assert ours(alone).bytes == -1  # perhaps another container's
    found = ours(alone, has_context=True)
    assert found.bytes == 500 * MIB
    assert "only one" in found.reason


def test_outside_of_containers_not_being_listed_is_zero(driver, outside_of_containers):
    driver.processes(driver.card(), {77: 100 * MIB})
    assert ours(Nvml()) == ProcessOnCard(0, "", 100 * MIB)


# Which card


def test_the_ways_to_write_a_uuid():
    digits = "00112233445566778899aabbccddeeff"
    written = "00112233-4455-6677-8899-AABBCCDDEEFF"
    for text in (digits, written, f"GPU-{written}", f"MIG-{written}", written.lower()):
        assert identity.canonical(text) == digits
    for text in ("", "GPU-", f"GPU-{written}0", f"MIG-GPU-{written}/1/0", "card-0"):
        assert identity.canonical(text) == ""


def test_mig_instances_stand_for_their_card(driver):
    divided = driver.card(0, mig=True)
    driver.card(1)
    driver.instance(divided, 0, 10)
    driver.processes(driver.instance(divided, 2, 11), {os.getpid(): 7 * MIB})
    source = Nvml()
    assert [device.name for device in source.devices()] == ["0:mig:0", "0:mig:2", "1"]
    assert source.process(source.devices()[1]).bytes == 7 * MIB
    with hiwater.track(meters=("nvml:0:mig:2:used",)) as t:
        pass
    assert (t.usage.gpu[0].used.end_bytes, t.usage.gpu[0].exact) == (7 * MIB, False)


def test_a_mig_instance_joins_the_device_that_torch_names_by_the_same_digits(driver):
    pytest.importorskip("torch")
    divided = driver.card(5, mig=True)
    driver.processes(driver.instance(divided, 0, 1), {os.getpid(): 5 * MIB})
    driver.processes(driver.instance(divided, 3, 0), {os.getpid(): 7 * MIB})
    with installed() as cuda:  # cuda:0 has the UUID number 0
        cuda.initialise()
        with hiwater.track(meters=("gpu", "nvml")) as t:
            pass
        joined, other = t.usage.gpu
        (breakdown,) = hiwater.device_breakdown()
    assert (joined.name, joined.used.end_bytes, other.used.end_bytes) == ("cuda:0", 7 * MIB, 5 * MIB)
    assert breakdown["used by this process"] == 7 * MIB


def test_instances_with_names_of_old_drivers_are_taken_for_a_device_only_where_there_is_one(driver):
    divided = driver.card(0, mig=True)
    for slot in (0, 1):
        driver.instance(divided, slot, 10, uuid=f"MIG-{uuid_of(0)}/{slot}/0")
        found = identity.card_of(cuda_device(0, 7), Nvml().devices())
        assert (found.name if found else None) == ("0:mig:0" if slot == 0 else None)


def test_the_drivers_figure_joins_the_librarys_device(driver):
    pytest.importorskip("torch")
    driver.card(1)  # PCI order is not CUDA's
    driver.processes(driver.card(0), {os.getpid(): 5 * MIB})
    with installed(2) as cuda:
        cuda.initialise(1)
        with hiwater.track(meters=("gpu", "nvml")) as t:
            cuda[1].malloc(MIB)
        joined, other = t.usage.gpu
    assert (joined.name, list(joined.levels)) == ("cuda:1", ["allocated", "reserved", "used", "device_used"])
    assert (joined.used.end_bytes, other.used.end_bytes) == (0, 5 * MIB)
    assert joined.peak_bytes == MIB


def test_one_card_that_was_asked_for_is_not_taken_for_the_only_one(driver):
    pytest.importorskip("torch")
    driver.card(0)
    driver.processes(driver.card(1), {os.getpid(): 5 * MIB})
    unnamed = Card(0)
    unnamed.uuid = ""
    with installed([unnamed]) as cuda:
        cuda.initialise()
        with hiwater.track(meters=("gpu", "nvml:1:used")) as t:
            pass
        told = [(device.name, list(device.levels)) for device in t.usage.gpu]
    assert told == [("cuda:0", ["allocated", "reserved"]), ("1", ["used"])]


def test_a_library_that_tells_no_uuid_is_joined_by_cudas(driver, cuda_driver, monkeypatch):
    """CUDA_VISIBLE_DEVICES=1,0: CUDA's device 0 is NVML's card 1."""
    local = types.SimpleNamespace(platform="gpu", id=8, local_hardware_id=0, memory_stats=lambda: {"bytes_in_use": MIB})
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(__version__="0"))
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", jax_double.bridge_with(local))
    cuda_driver([1, 0], initialised=False)
    assert devices.backend("jax").devices()[0].uuid == ""  # nobody has called cuInit: CUDA refuses
    cuda_driver([1, 0])
    driver.card(0)
    driver.processes(driver.card(1), {os.getpid(): 5 * MIB})
    (breakdown,) = [each for each in hiwater.device_breakdown() if each.device == "gpu:8"]
    assert (breakdown["arrays"], breakdown["used by this process"]) == (MIB, 5 * MIB)


def test_two_libraries_mean_one_card_by_uuid_and_else_by_cudas_number():
    assert identity.is_same(cuda_device(0, 5), cuda_device(1, 5, "jax"))
    assert not identity.is_same(cuda_device(0, 5), cuda_device(0, 6, "jax"))
    assert identity.is_same(cuda_device(1, 5), cuda_device(1, None, "jax"))
    assert not identity.is_same(cuda_device(1, 5), cuda_device(0, None, "jax"))
    xpu = Device("torch", "xpu:0", 0)
    assert not identity.is_same(xpu, cuda_device(0, None, "jax"))
    assert identity.card_of(xpu, [Device("nvml", "0", 0, "")]) is None


def test_a_refusal_on_a_host_with_several_gpus_says_what_others_hold(driver):
    pytest.importorskip("torch")
    from hiwater.contrib.torch import oom_report

    driver.processes(driver.card(1), {os.getpid(): 5 * MIB, 77: 700 * MIB})
    driver.processes(driver.card(0), {78: 20 * MIB})
    with installed([Card(0), Card(1, GIB)]) as cuda:
        cuda.initialise(0, 1)
        with pytest.raises(cuda.torch.cuda.OutOfMemoryError) as raised:
            cuda[1].malloc(2 * GIB)
        report = oom_report.make(raised.value)
        assert (report.device, report.others_bytes) == ("cuda:1", 700 * MIB)
        assert any("other processes hold 700 MiB" in one for one in report.verdict.advice)
        driver.refuse(*LISTS)
        forget()
        assert oom_report.make(raised.value).others_bytes is None


# After a fork

FORKED = """
import os, sys, threading
sys.path.insert(0, {folder!r})
import driver_double
driver_double.compiled.library = {libraries!r}.__getitem__
from hiwater.meters.devices.nvml import Nvml
driver = driver_double.Driver()
card = driver.card()
driver.processes(card, {{os.getpid(): 5 << 20}})
source = Nvml()
assert source.process(source.devices()[0]).bytes == 5 << 20
{body}
"""


def forked(body):
    libraries = {"nvml": str(driver_double.compiled.library("nvml"))}
    code = FORKED.format(folder=str(HELPERS), libraries=libraries, body=body)
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_asks_the_driver_anew():
    """Not what the parent was told before, and not through the parent's handles."""
    body = """
handles = {name: handle for name, handle in source._handles.items()}
pid = os.fork()
if pid == 0:
    driver.processes(card, {os.getpid(): 9 << 20, os.getppid(): 5 << 20})
    found = source.process(source.devices()[0])
    print(found.bytes >> 20, found.others_bytes >> 20, source._handles["0"] is handles["0"], flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    assert forked(body) == "9 5 False\n"


ASKED = """
source = Nvml(clock=iter(range(1, 1000)).__next__)
entered, go = os.pipe(), os.pipe()
assert source.devices()
driver.hold(entered[1], go[0])
thread = threading.Thread(target=lambda: source.process(source.devices()[0]))
thread.start()
os.read(entered[0], 1)
"""


def test_a_fork_waits_for_a_question_to_be_answered():
    """Else the driver's lock would be held in the child for ever, and whoever asks there, here the program itself,
    would wait for it."""
    body = """
import pynvml
os.register_at_fork(before=lambda: os.write(go[1], b"."))  # is called before ours, which was registered earlier
pid = os.fork()
if pid == 0:
    driver.processes(card, {os.getpid(): 9 << 20})
    print(pynvml.nvmlDeviceGetCount(), source.process(source.devices()[0]).bytes >> 20, flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
thread.join()
driver.processes(card, {os.getpid(): 6 << 20})
print(source.process(source.devices()[0]).bytes >> 20)
"""
    assert forked(ASKED + body) == "1 9\n6\n"


def test_a_child_forked_while_a_thread_asked_leaves_the_driver_alone():
    """An answer that does not come is not waited for: the driver's lock is held in the child, and asking would hang."""
    body = """
pid = os.fork()
if pid == 0:
    print(source.status().reason, source.devices(), flush=True)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
os.write(go[1], b".")
thread.join()
print(source.process(source.devices()[0]).bytes >> 20)
"""
    told = forked(ASKED + body)
    assert told.startswith("this process was forked while another thread called NVML")
    assert told.endswith(" []\n5\n")


def test_threads_that_ask_at_once_are_told_the_same(driver):
    driver.processes(driver.card(), {os.getpid(): 5 * MIB})
    source, told = Nvml(), []
    asked = [threading.Thread(target=lambda: told.append(ours(source).bytes)) for _ in range(8)]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join()
    assert told == [5 * MIB] * 8
