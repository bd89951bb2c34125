"""`guard()`: when memory runs out inside a block, a report of what was live is written; the exception goes on unchanged."""

from __future__ import annotations

import os
import pickle
import sys

from hiwater.capture import destination
from hiwater.contrib.torch import cuda_ready, oom_message, oom_report
from hiwater.contrib.torch.history import is_enabled
from hiwater.contrib.torch.oom_message import Observed, Refusal
from hiwater.contrib.torch.oom_report import OomReport
from hiwater.recording.device_histories import active

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Self

_PROTOCOL = 4
_STEM = "hiwater-oom.%p"
_MOST_OBSERVED = 16  # several threads may be refused memory before one of them makes a report


class _Watch:
    """torch's observer of refusals: attached once, since torch cannot detach it, and deaf while nobody listens."""

    def __init__(self) -> None:
        self.listeners = 0
        self.refusal = ""
        """Why no observer could be attached: the driver's and the program's own allocators have none."""
        self._seen: list[Observed] = []
        self._was_tried = False

    def listen(self) -> None:
        """Attach the observer, at once or when CUDA is initialised. Never raises for an allocator that has none."""
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
        """Listen no longer."""
        self.listeners -= 1
        if not self.listeners:
            self._seen.clear()

    def take(self, refusal: Refusal) -> Observed | None:
        """What was observed of this refusal; nothing where the error is of another, which the program caught, or of other memory. All that
        was observed up to now is forgotten."""
        seen, self._seen = self._seen, []
        return next((each for each in reversed(seen) if each.is_of(refusal)), None)

    def _see(self, device: int, requested: int, _device_allocated: int, device_free: int) -> None:
        """Called by torch where it is about to raise; an exception here would take the place of its own. Most refusals are caught by the
        program, so it only notes: the allocator is looked at when a report is made."""
        if self.listeners:
            self._seen = [*self._seen[1 - _MOST_OBSERVED :], Observed(device, requested, device_free)]


WATCH = _Watch()


class guard:  # noqa: N801 - used as a statement: `with hiwater.contrib.torch.guard():`
    """Write a report when a block ends with torch's out-of-memory error (or the driver's, or CPU torch's).

        with hiwater.contrib.torch.guard(model=net):
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
        history = _history()
        report = oom_report.make(error, WATCH.take(oom_message.parse(str(error))), model, history)
        error.__hiwater_told__ = True  # type: ignore[attr-defined]  # any exception of Python's has room for it
        histories = active()
        if histories is not None:
            import json

            histories.give("oom.json", json.dumps(report.to_dict()).encode())
        _, text = report.write(stem)
        if history is not None:
            with open(f"{stem}.pickle", "wb") as stream:
                pickle.dump(history, stream, _PROTOCOL)
        if not quiet:
            _say(f"memory of {report.device} was refused ({report.verdict.kind}): {text} says what was live")
    except Exception as fault:  # noqa: BLE001 - the program's own exception must go on, whatever went wrong here
        _say(f"warning: no report of the refused memory could be written ({type(fault).__name__}: {fault})")
        return None
    return report


def _history() -> Any:
    """Torch's snapshot with its events, where a history is kept; else None."""
    torch = sys.modules["torch"]
    is_kept = torch.cuda.is_initialized() and is_enabled(torch)
    return torch.cuda.memory._snapshot() if is_kept else None


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"hiwater: {text}\n")
