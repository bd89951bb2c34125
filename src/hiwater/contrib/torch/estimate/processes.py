"""The processes that estimates run in: a new interpreter for a name, a fork for objects. Each sends its result or its
error through a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from hiwater import errors
from hiwater.errors import MORE_PROCESSES, EstimateFailed, HiwaterError


def ask_interpreter(target: str, request: Mapping[str, Any]) -> Any:
    """The answer of a new interpreter, which finds the function by its name."""
    kind, path, function = split_target(target)
    request = {**request, "kind": kind, "path": path, "function": function}
    reading, writing = os.pipe()
    hidden = {} if request["task"] == "measure" else {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **hidden}
    words = [sys.executable, "-m", "hiwater.contrib.torch.estimate.worker", str(writing)]
    with open(reading, encoding="utf-8") as answer:
        try:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=(writing,), env=environment, text=True)
        except OSError as error:
            raise EstimateFailed(
                f"no interpreter could be started ({error.strerror})", "see `hiwater doctor`"
            ) from error
        finally:
            os.close(writing)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request))
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended already: its exit code says why
        text = answer.read()
    return _unpacked(text, process.wait())


def split_target(target: str) -> tuple[str, str, str]:
    """The parts of `script.py:build` or `package.module:build`: "script" or "module", the path, the function. Raises
    UsageError."""
    path, separator, function = target.rpartition(":")
    if not separator or not path or not all(part.isidentifier() for part in function.split(".")):
        raise errors.UsageError(
            f"{target!r} is not the name of a function", "write script.py:function or -m package.module:function"
        )
    return ("script" if path.endswith(".py") or os.sep in path else "module"), path, function


def ask_fork(work: Callable[[], Any]) -> Any:
    """What `work` returns in a copy of this process, or the HiwaterError that it raises there."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise EstimateFailed(
            "this process uses its card already, and a fork of it could not run backward",
            "call estimate before anything is put on the card, or name a function: estimate('script.py:build')",
        )
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # A warning about forks with threads: the child runs no other thread of the parent.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError as error:
            raise EstimateFailed(f"this process could not fork ({error.strerror})", MORE_PROCESSES) from error
    if child == 0:
        _answer_and_leave(work, writing)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        text = answer.read()
    return _unpacked(text, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _answer_and_leave(work: Callable[[], Any], writing: int) -> None:
    code = 1
    try:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""
        sys.stdout = sys.stderr  # not the descriptor: this copy may have text that the user's process has not flushed
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)  # OpenMP would wait for threads of the other process
        send(writing, work)
        code = 0
    except BaseException:  # noqa: BLE001 - the copy of the user's process must end here
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def send(descriptor: int, work: Callable[[], Any]) -> None:
    """Write what `work` returns, or its error."""
    try:
        reply = {"result": work()}
    except HiwaterError as error:
        reply = {"error": [type(error).__name__, error.problem, error.remedy]}
    with open(descriptor, "w", encoding="utf-8") as stream:
        json.dump(reply, stream)


def _unpacked(text: str, code: int) -> Any:
    if not text:
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise EstimateFailed(
            f"the process made for the estimate died with {ending}",
            "what it wrote on stderr says more; a function that is named, estimate('script.py:build'), runs in a new"
            " interpreter",
        )
    reply = json.loads(text)
    if "error" in reply:
        name, problem, remedy = reply["error"]
        kind: type[HiwaterError] = getattr(errors, name, EstimateFailed)
        raise kind(problem, remedy)
    return reply["result"]
