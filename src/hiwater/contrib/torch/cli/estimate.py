"""`hiwater estimate`: estimates the memory of a step of training or inference on a card, without the card.

Exit codes: 0 if it fits (or without a card), 1 if it does not, 3 if that is unknown because the figures are too low; 2
for a wrong request, 127 and 126 if the function does not exist or cannot be run, 125 if the estimate cannot be made.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, TextIO

from hiwater.errors import OutputFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hiwater.contrib.torch.estimate.batch import Search
    from hiwater.contrib.torch.estimate.result import EstimateData

_UNKNOWN = 3
_FORMATS = ("text", "json", "html")
PARSER = {
    "usage": "hiwater estimate [options] (SCRIPT:FUNCTION | -m MODULE:FUNCTION)",
    "usual": ("-m", "-d", "--mode", "-b", "--largest-batch"),
    "description": (
        "Computes what a step would need on a card: it runs the step on tensors that have sizes and no memory."
    ),
    "epilog": """\
the function returns (module, inputs), (module, inputs, optimizer) or (module, inputs, optimizer, loss);
if it has an argument batch_size, --batch and --largest-batch work.

examples:
  hiwater estimate train.py:build                              a training step on an H200
  hiwater estimate train.py:build --device "RTX 4090"          on another card; --device 80GiB for any size
  hiwater estimate -m project.model:build --batch 32 --autocast bf16
  hiwater estimate train.py:build --largest-batch --multiple-of 8 --device A100-80GB
  hiwater estimate train.py:build --try checkpointing,bf16,checkpointing+bf16
  hiwater estimate train.py:build --ranks 8                    DDP, FSDP or tensor parallelism on 8 cards: the first
  hiwater estimate serve.py:build --mode inference --dtype fp16 --format json
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "target", nargs="?", metavar="SCRIPT:FUNCTION", help="a function in a script, such as train.py:build"
    )
    where.add_argument(
        "-m", "--module", metavar="MODULE:FUNCTION", help="a function in a module that Python can import"
    )
    parser.add_argument(
        "-d", "--device", help='a card ("A100 80GB"), a size (80GiB), or cpu (default: NVIDIA H200 141GB)'
    )
    parser.add_argument(
        "--mode", choices=("train", "inference"), default="train", help="what the step does (default: train)"
    )
    parser.add_argument("-b", "--batch", type=int, metavar="N", help="call the function with batch_size=N")
    parser.add_argument("--largest-batch", action="store_true", help="find the largest batch that fits")
    parser.add_argument(
        "--multiple-of", type=int, default=1, metavar="N", help="with --largest-batch: only multiples of N"
    )
    parser.add_argument(
        "--at-most", type=int, default=2**20, metavar="N", help="with --largest-batch: at most N (default: 1048576)"
    )
    parser.add_argument(
        "--try",
        dest="tries",
        default="",
        metavar="CHANGES",
        help=(
            "run the step also with each of these changes: checkpointing, bf16, optimizer, batch (half of it), or all;"
            " + joins several"
        ),
    )
    parser.add_argument(
        "--dtype", metavar="TYPE", help="convert the module and its inputs to this type: fp32, fp16 or bf16"
    )
    parser.add_argument(
        "--autocast", metavar="TYPE", help="run forward and loss under autocast with this type: fp16 or bf16"
    )
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="the number of steps (default: 3)")
    parser.add_argument(
        "--accumulate",
        type=int,
        default=1,
        metavar="N",
        help="backward passes before each step of the optimizer (default: 1)",
    )
    parser.add_argument(
        "--ranks", type=int, metavar="N", help="the number of processes that train together, of which this is the first"
    )
    parser.add_argument(
        "--context", metavar="SIZE", help="what the driver uses for the process (default: 512MiB, an assumption)"
    )
    parser.add_argument(
        "--record-row",
        metavar="FILE",
        help="also run the step on this machine's card, and write its peaks and the estimate for that card, as JSON",
    )
    parser.add_argument("--format", choices=_FORMATS, default="text", help="what to write (default: text)")
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="the number of rows in each table (default: 10)"
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="write to this file instead of stdout")


def run(arguments: argparse.Namespace) -> int:
    """Print an estimate, and return the exit code."""
    from hiwater.contrib.torch.estimate import api

    if arguments.largest_batch and arguments.batch is not None:
        raise UsageError("--batch and --largest-batch cannot be used together", "leave out one of the two")
    if arguments.largest_batch and arguments.tries:
        raise UsageError("--try and --largest-batch cannot be used together", "leave out one of the two")
    if arguments.record_row and (arguments.device or arguments.largest_batch or arguments.tries or arguments.ranks):
        raise UsageError(
            "--record-row is for the step as it is, on this machine's card",
            "leave out --device, --largest-batch, --ranks and --try",
        )
    if arguments.batch is not None and arguments.batch < 1:
        raise UsageError(f"--batch {arguments.batch} is not a batch", "give a number from 1 up")
    shared: dict[str, Any] = {
        "device": arguments.device or api.DEFAULT_DEVICE, "mode": arguments.mode, "dtype": arguments.dtype,
        "autocast": arguments.autocast, "steps": arguments.steps, "accumulate": arguments.accumulate,
        **({"ranks": arguments.ranks} if arguments.ranks is not None else {}),
    }  # fmt: skip
    if arguments.context is not None:
        shared["context"] = arguments.context
    target = _target(arguments)
    if arguments.largest_batch:
        search = api.largest_batch(target, multiple_of=arguments.multiple_of, largest=arguments.at_most, **shared)
        _show(search, arguments)
        if search.low_because:
            return _UNKNOWN
        return 0 if search.batch_size else 1
    if arguments.record_row:
        document, found = api.measured_and_estimated(target, arguments.batch, **shared)
        _write_to(arguments.record_row, lambda stream: stream.write(json.dumps(document, indent=1) + "\n"))
    else:
        found = api.estimate(target, batch_size=arguments.batch, tries=arguments.tries, **shared)
    _show(found, arguments)
    if found.fits is None and found.total_bytes is not None:
        return _UNKNOWN
    return 1 if found.fits is False else 0


def _target(arguments: argparse.Namespace) -> str:
    from hiwater.contrib.torch.estimate.processes import split_target

    if arguments.module is not None:
        return str(arguments.module)
    split_target(arguments.target)  # checked here, before a process is started
    return str(arguments.target)


def _show(found: EstimateData | Search, arguments: argparse.Namespace) -> None:
    import sys

    if arguments.output is None:
        _write(found, arguments, sys.stdout)
        return
    _write_to(arguments.output, lambda stream: _write(found, arguments, stream))


def _write_to(path: str, write: Callable[[TextIO], object]) -> None:
    try:
        with open(path, "w", encoding="utf-8") as stream:
            write(stream)
    except OSError as error:
        raise OutputFailed(
            f"the estimate cannot be written to {path!r} ({error.strerror})", "choose another file"
        ) from error


def _write(found: EstimateData | Search, arguments: argparse.Namespace, stream: TextIO) -> None:
    from hiwater.contrib.torch.estimate import rendering
    from hiwater.contrib.torch.estimate.result import EstimateData

    if arguments.format == "json":
        stream.write(json.dumps(found.to_dict(), indent=1) + "\n")
    elif arguments.format == "html":
        rendering.write_html(found, stream, arguments.top)
    elif isinstance(found, EstimateData):
        rendering.write(found, stream, arguments.top)
    else:
        rendering.write_search(found, stream, arguments.top)
