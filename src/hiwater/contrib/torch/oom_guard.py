"""`guard()`: writes a report of the live memory when memory runs out inside a block. The exception continues
unchanged."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from hiwater._os import destination
from hiwater._os.replacing import replacing
from hiwater.contrib.torch import cuda_ready, oom_message, oom_report
from hiwater.contrib.torch.history import is_enabled
from hiwater.contrib.torch.oom_message import Observed, Refusal
from hiwater.contrib.torch.oom_report import OomReport
from hiwater.recording.device_histories import active

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

_PROTOCOL = 4
_STEM = "hiwater-oom.%p"
_MOST_OBSERVED = 16  # several threads may be refused memory before one of them makes a report


class _Watch:
    """torch's observer of refused requests. It is attached once, since torch cannot detach it, and does nothing
    without listeners."""

    def __init__(self) -> None:
        self.listeners = 0
        self.refusal = ""
        """Why no observer could be attached. Allocators of the driver and of the program have none."""
        self._seen: list[Observed] = []
        self._was_tried = False

    def listen(self) -> None:
        """Attach the observer now, or when CUDA is initialised. Never raises, also if the allocator has no
        observers."""
        self.listeners += 1
        torch = sys.modules.get("torch")
        if self._was_tried or torch is None:
            return
        if not torch.cuda.is_initialized():
            cuda_ready.call_when_ready(torch, self._attach)
        if cuda_ready.is_ready(torch):
            self._attach()

    def _attach(self) -> None:
        attach = getattr(sys.modules["torch"]._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is None or self._was_tried:
            return
        self._was_tried = True
        try:
            attach(self._see)
        except RuntimeError as error:
            self.refusal = str(error)

    def leave(self) -> None:
        """Remove one listener."""
        self.listeners -= 1
        if not self.listeners:
            self._seen.clear()

    def take(self, refusal: Refusal) -> Observed | None:
        """The observation of this refusal, None if there is none. Forgets all observations."""
        seen, self._seen = self._seen, []
        return next((each for each in reversed(seen) if each.is_of(refusal)), None)

    def _see(self, device: int, requested: int, _device_allocated: int, device_free: int) -> None:
        """Called by torch before it raises; an exception here would replace torch's. The program catches most
        refusals, so this only notes the figures. The allocator is read when a report is made."""
        if self.listeners:
            self._seen = [*self._seen[1 - _MOST_OBSERVED :], Observed(device, requested, device_free)]


WATCH = _Watch()


class guard:  # noqa: N801 - used as a statement: `with hiwater.contrib.torch.guard():`
    """Write a report if a block ends with an out-of-memory error of torch (also on the CPU) or of the driver.

        with hiwater.contrib.torch.guard(model=net):
            train(net)

    The report has the live memory by stack (if a history is recorded, as under `hiwater run`) and by tensor, the
    refused request, and whether memory was fragmented or short, with advice. It is written to `PATH.json` and
    `PATH.txt`, by default `hiwater-oom.<pid>` in the current folder; with a history also to `PATH.pickle`, for `hiwater
    report --at oom`. One line on stderr names it. A recording has the report, too. `model` names the tensors, as in
    MemReporter. The exception continues unchanged. `report` is None until there is one.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, model: Any = None, quiet: bool = False) -> None:
        """Raises CaptureUnwritable for an unknown `%` in `path`."""
        self._stem = destination.absolute(destination.expand(os.fspath(path) if path is not None else _STEM))
        self._model = model
        self._quiet = quiet
        self.report: OomReport | None = None

    def __enter__(self) -> Self:
        WATCH.listen()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if oom_message.is_refusal(error):
                assert error is not None
                self.report = write_report(error, self._stem, model=self._model, quiet=self._quiet)
        finally:
            WATCH.leave()


def write_report(error: BaseException, stem: str, *, model: Any = None, quiet: bool = False) -> OomReport | None:
    """Write the report on an error to `STEM.json`, `STEM.txt` and, with a history, `STEM.pickle`. Never raises."""
    if getattr(error, "__hiwater_reported__", False):  # by an inner guard
        return None
    try:
        history = _history()
        report = oom_report.make(error, WATCH.take(oom_message.parse(str(error))), model, history)
        error.__hiwater_reported__ = True  # type: ignore[attr-defined]  # every exception has a __dict__
        histories = active()
        if histories is not None:
            import json

            histories.give("oom.json", json.dumps(report.to_dict()).encode())
        _, text = report.write(stem)
        if history is not None:
            with replacing(Path(f"{stem}.pickle"), is_private=True) as stream:
                pickle.dump(history, stream.buffer, _PROTOCOL)
        if not quiet:
            _say(f"memory of {report.device} was refused ({report.verdict.kind}): {text} says what was live")
    except Exception as fault:  # noqa: BLE001 - the program's own exception must continue
        _say(f"warning: no report of the refused memory could be written ({type(fault).__name__}: {fault})")
        return None
    return report


def _history() -> Any:
    """Torch's snapshot with its events; None if no history is recorded."""
    torch = sys.modules["torch"]
    is_kept = torch.cuda.is_initialized() and is_enabled(torch)
    return torch.cuda.memory._snapshot() if is_kept else None


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"hiwater: {text}\n")
