"""`guard()`: when memory runs out inside a block, a report of what was live is written; the exception goes on unchanged."""

from __future__ import annotations

import os
import pickle
import sys
import time

from hiwater.engine import destination
from hiwater.history.recording import active
from hiwater.torch import oom_message, oom_report
from hiwater.torch.oom_report import Observed, OomReport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

_PROTOCOL = 4
_STEM = "hiwater-oom.%p"


class _Watch:
    """torch's observer of refusals: attached once, since torch cannot detach it, and deaf while nobody listens."""

    def __init__(self) -> None:
        self.listeners = 0
        self.last: Observed | None = None
        self._is_attached = False

    def listen(self) -> None:
        self.listeners += 1
        torch = sys.modules.get("torch")
        if self._is_attached or torch is None:
            return
        if torch.cuda.is_initialized():
            self._attach(torch)
        elif torch.version.cuda or torch.version.hip:
            torch.cuda._lazy_call(lambda: self._attach(torch))

    def _attach(self, torch: Any) -> None:
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None and not self._is_attached:
            self._is_attached = True
            attach(self._see)

    def leave(self) -> None:
        self.listeners -= 1
        if not self.listeners:
            self.last = None

    def take(self) -> Observed | None:
        """The last refusal, once."""
        seen, self.last = self.last, None
        return seen

    def _see(self, device: int, requested: int, _device_allocated: int, device_free: int) -> None:
        """Called by torch where it is about to raise; an exception here would take the place of its own."""
        if not self.listeners:
            return
        try:
            segments = oom_report.snapshot_without_traces(sys.modules["torch"])
            mine = [segment for segment in segments if segment.get("device", 0) == device]
            self.last = Observed(device, requested, device_free, mine, time.monotonic_ns())
        except Exception:  # noqa: BLE001 - then the allocator is looked at after the exception
            self.last = None


WATCH = _Watch()


class guard:  # noqa: N801 - used as a statement: `with hiwater.torch.guard():`
    """Write a report when a block ends with torch's out-of-memory error (or the driver's, or CPU torch's).

        with hiwater.torch.guard(model=net):
            train(net)

    The report says what was live by stack (where a history is kept, as in a recording) and by tensor, the refused request, whether
    memory was fragmented or short, and what follows. It goes to `PATH.json` and `PATH.txt`, by default `hiwater-oom.<pid>` in the current
    folder, with `PATH.pickle` beside them, for `hiwater report --at oom`, where a history is kept; one line on stderr says so. A recording has
    it as well. `model` gives tensors their names, as in MemReporter. The exception goes on as it is; `report` is None until there is one.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if oom_message.is_refusal(error):
                assert error is not None
                self.report = tell(error, self._stem, model=self._model, quiet=self._quiet)
        finally:
            WATCH.leave()


def tell(error: BaseException, stem: str, *, model: Any = None, quiet: bool = False) -> OomReport | None:
    """Make the report on an error and write it to `STEM.json`, `STEM.txt` and, with a history, `STEM.pickle`. Never raises."""
    if getattr(error, "__hiwater_told__", False):  # by a guard further in
        return None
    try:
        report = oom_report.make(error, WATCH.take(), model)
        error.__hiwater_told__ = True  # type: ignore[attr-defined]  # any exception of Python's has room for it
        histories = active()
        if histories is not None:
            import json

            histories.give("oom.json", json.dumps(report.to_dict()).encode())
        _, text = report.write(stem)
        _write_history(f"{stem}.pickle")
        if not quiet:
            _say(f"memory of {report.device} was refused ({report.verdict.kind}): {text} says what was live")
    except Exception as fault:  # noqa: BLE001 - the program's own exception must go on, whatever went wrong here
        _say(f"warning: no report of the refused memory could be written ({type(fault).__name__}: {fault})")
        return None
    return report


def _write_history(path: str) -> None:
    """Torch's snapshot with its events, where a history is kept."""
    torch = sys.modules["torch"]
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if not torch.cuda.is_initialized() or enabled is None or not enabled():
        return
    with open(path, "wb") as stream:
        pickle.dump(torch.cuda.memory._snapshot(), stream, _PROTOCOL)


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"hiwater: {text}\n")
