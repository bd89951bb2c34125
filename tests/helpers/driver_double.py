"""The driver's two libraries, NVML and CUDA's, compiled here and put in the place of the real ones: nvidia-ml-py and
hiwater run over them as they are. Nothing here is told by a card; docs/gpu.md says what that leaves open."""

import _ctypes
import ctypes
import uuid as uuids

import compiled

MIB = 1 << 20
NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = 3, 4, 15
MEMORY_OF_CARDS = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")
LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
WITHHELD = (1 << 64) - 1


def uuid_of(number, prefix="GPU-"):
    """A UUID as NVML writes it: `GPU-` or `MIG-` and 32 hexadecimal digits. torch and CUDA give it without the first
    part."""
    return f"{prefix}{uuids.UUID(int=0xABCDEF0123456789ABCDEF << 32 | number)}"


class Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Driver:
    """The cards of a machine. A number that `card` or `instance` returns is this double's own, and not NVML's index."""

    def __init__(self):
        self._nvml = ctypes.CDLL(str(compiled.library("nvml")))
        self._nvml.nvml_double_reset()

    def card(self, number=0, *, used=900 * MIB, reserved=3 * MIB, total=80 << 30, mig=None, uuid=None):
        """Put in a card; `mig` says whether it is divided, None for one that cannot be."""
        return self._add(uuid or uuid_of(number), total, used, reserved, -1 if mig is None else int(mig), -1, 0)

    def instance(self, card, slot, number, *, used=9 * MIB, uuid=None):
        """Divide a card: an instance in one of its slots."""
        return self._add(uuid or uuid_of(number, "MIG-"), 10 << 30, used, 0, -1, card, slot)

    def _add(self, uuid, total, used, reserved, *rest):
        bytes_of = [ctypes.c_ulonglong(size) for size in (total, used, reserved)]
        return self._nvml.nvml_double_add(uuid.encode(), *bytes_of, *rest)

    def processes(self, device, running):
        """`running` is {process number: bytes, or None where the driver withholds them}."""
        listed = [Process(pid, WITHHELD if used is None else used, 0, 0) for pid, used in running.items()]
        self._nvml.nvml_double_processes(device, (Process * len(listed))(*listed), len(listed))

    def memory(self, device, used):
        self._nvml.nvml_double_memory(device, ctypes.c_ulonglong(used))

    def refuse(self, *functions, error=NOT_SUPPORTED, device=-1):
        for function in functions:
            self._nvml.nvml_double_refuse(device, function.encode(), error)

    def accept(self):
        self._nvml.nvml_double_accept()

    @property
    def process_lists(self):
        """How often the list of computing processes was asked for, and told or refused."""
        return self._nvml.nvml_double_process_lists()

    def hold(self, entered, go):
        """The next list of processes writes a byte to `entered` and waits for one from `go`, with the driver's lock
        held."""
        self._nvml.nvml_double_hold(entered, go)

    def remove(self):
        """Leave the process as without a driver."""
        import pynvml

        if pynvml.nvmlLib is not None:
            _ctypes.dlclose(pynvml.nvmlLib._handle)
            pynvml.nvmlLib = None
        pynvml._nvmlGetFunctionPointer_cache.clear()
        _ctypes.dlclose(self._nvml._handle)


class CudaDriver:
    """CUDA's own library, which a program that uses a GPU has loaded and begun; `order` numbers the cards as this
    process sees them."""

    def __init__(self, order, *, initialised=True):
        self._cuda = ctypes.CDLL(str(compiled.library("cuda_driver")))
        self._cuda.cuda_double_reset()
        for number in order:
            self._cuda.cuda_double_add(uuids.UUID(uuid_of(number, "")).bytes)
        if initialised:
            self._cuda.cuInit(0)

    def remove(self):
        _ctypes.dlclose(self._cuda._handle)
