"""What cards are: their memory as PyTorch counts it, their compute capability and their multiprocessors."""

from __future__ import annotations

from typing import NamedTuple

from hiwater._os.sizes import parse_size
from hiwater.errors import BadSize, UsageError

_GIB = 2**30


# The largest number of resident threads per multiprocessor where it is not 2048: the CUDA Programming Guide, "Compute
# Capabilities".
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}


class Processors(NamedTuple):
    """A card's multiprocessors, and the threads that can be on each."""

    multiprocessors: int
    threads: int


class Card(NamedTuple):
    """A device that a step is to fit on. One of which only the size is known is taken for a Hopper, whose workspaces
    are the largest."""

    name: str
    total_bytes: int
    source: str = "as asked for"
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132

    @property
    def processors(self) -> Processors:
        return Processors(self.multiprocessors, _THREADS.get(self.capability, 2048))


def _card(name: str, gibibytes: float, capability: tuple[int, int], multiprocessors: int, source: str) -> Card:
    return Card(name, int(gibibytes * _GIB), source, capability, multiprocessors)


# What torch calls the card's "total capacity", which is less than the name says: the driver keeps some, and ECC does.
# Capabilities are those of developer.nvidia.com/cuda-gpus, multiprocessors those of NVIDIA's data sheets (of the SXM
# card where there are several).
# It differs by driver; where several figures were seen, the smallest stands here. The sources are messages and listings
# that users published.
CARDS = (
    _card("NVIDIA B200 180GB", 178.35, (10, 0), 148, "cudaGetDeviceProperties in github.com/pytorch/ao/pull/4002"),
    _card("NVIDIA H200 141GB", 139.8, (9, 0), 132, "torch.cuda.get_device_properties on one"),
    _card("NVIDIA H100 80GB", 79.10, (9, 0), 132, "github.com/huggingface/trl/issues/2688"),
    _card("NVIDIA A100 80GB", 79.25, (8, 0), 108, "github.com/wbfwonderful/Vad-R1/issues/11"),
    _card("NVIDIA A100 40GB", 39.50, (8, 0), 108, "github.com/TianheWu/CoSeR/issues/10"),
    _card("NVIDIA RTX 8000 48GB", 47.45, (7, 5), 72, "github.com/SkyworkAI/SkyReels-V1/issues/78"),
    _card("NVIDIA L40 48GB", 44.40, (8, 9), 142, "github.com/QwenLM/Qwen3-VL/issues/2097"),
    _card("NVIDIA RTX 5090 32GB", 31.37, (12, 0), 170, "github.com/Wan-Video/Wan2.1/issues/465"),
    _card("NVIDIA RTX 4090 24GB", 23.52, (8, 9), 128, "github.com/Soul-AILab/SoulX-FlashTalk/issues/5"),
    _card("NVIDIA A10 24GB", 21.99, (8, 6), 72, "github.com/zai-org/CogVLM/issues/236"),
    _card("NVIDIA T4 16GB", 14.56, (7, 5), 40, "github.com/Zheng-Chong/CatVTON/issues/133"),
)


_DETAILS = {"geforce", "tesla", "sxm2", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e"}  # in names that torch has


def find_card(text: str) -> Card:
    """The card of this name (`H200`, `nvidia a100 80gb`, or torch's own `NVIDIA A100-SXM4-80GB`), or one of this size
    (`80GiB`).

    Raises UsageError when no card has the name, or more than one.
    """
    words = set(text.lower().replace("-", " ").replace("_", " ").split())
    found = [card for card in CARDS if words and words - _DETAILS <= {"nvidia", *card.name.lower().split()}]
    if len(found) == 1:
        return found[0]
    names = ", ".join(card.name for card in found or CARDS)
    if found:
        raise UsageError(f"{text!r} could be any of {names}", "give its whole name")
    try:
        size = parse_size(text)
    except BadSize:
        size = 0
    if size <= 0:
        raise UsageError(
            f"{text!r} is neither a card that hiwater knows nor a size",
            f"write a size such as 80GiB, or one of {names}",
        )
    return Card(text.strip(), size)
